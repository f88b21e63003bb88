"""The command line: `python -m experiments.semisupervised_vae --data FOLDER --quick`."""

from __future__ import annotations

import sys

from .. import latents
from .train import train

EXPERIMENT = latents.Experiment(
    name="semisupervised_vae",
    title="An autoencoder with few labels: results",
    estimators=tuple(latents.CATEGORICAL),
    train=train,
    measure="accuracy",
    figures={"accuracy": "validation accuracy, best epoch", "elbo": "ELBO there"},
    paper={},
    may_be_zero=("warm",),
    options={
        "epochs": (200, 2),
        "warm": (50, 40),
        "lr": (5e-4, 1e-3),
        "alpha": (50.0, 50.0),
        "batch": (64, 64),
        "labels": (5000, 500),
        "images": (50_000, 3000),
    },
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
