"""The command line: `python -m experiments.emergent_communication --data FOLDER --quick`."""

from __future__ import annotations

import sys

from .. import latents
from . import features
from .train import train

EXPERIMENT = latents.Experiment(
    name="emergent_communication",
    title="A game of symbols: results",
    estimators=tuple(latents.CATEGORICAL),
    train=train,
    measure="success",
    figures={"success": "communication success, best epoch"},
    paper={"sparsemax": "calls fall to close to 1 on average"},
    data="folder of train-images and train-labels, IDX; or a safetensors file of features, `train` "
    "and `validation`, (N, F) each",
    slow=("dense",),
    prepare=features.cached,
    tuned={
        "sparsemax": {"lr": 3e-4},
        "dense": {"lr": 3e-4},
        "gumbel": {"entropy": 0.05},
        "straight-through": {"entropy": 0.05},
    },
    options={
        "epochs": (200, 2),
        "lr": (1e-3, 1e-3),
        "entropy": (0.1, 0.1),
        "batch": (64, 64),
        "candidates": (16, 16),
        "images": (50_000, 5000),
    },
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
