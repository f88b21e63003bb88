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
        **{name: {"entropy": 0.1} for name in ("sparsemax", "dense", "gumbel", "straight-through")},
        **{name: {"lr": 1e-3} for name in ("score-function", "sum-and-sample")},
    },
    options={
        "epochs": (200, 2),
        "lr": (3e-4, 1e-3),
        "entropy": (0.3, 0.1),
        "batch": (64, 64),
        "candidates": (16, 16),
        "images": (50_000, 5000),
    },
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
