"""The command line: `python -m experiments.bitvector_vae --data FOLDER --bits 32 --quick`."""

from __future__ import annotations

import sys

from .. import latents
from .train import ESTIMATORS, train

EXPERIMENT = latents.Experiment(
    name="bitvector_vae",
    title="An autoencoder with bits: results",
    estimators=ESTIMATORS,
    train=train,
    measure="elbo",
    figures={
        "elbo": "validation ELBO, best epoch",
        "distortion": "distortion there",
        "rate": "rate there",
        "bits_per_dimension": "bits per dimension there",
    },
    paper={"top-k": "calls in all 561 (32 bits), 998 (128 bits)"},
    options={
        "bits": (32, 32),
        "epochs": (100, 4),
        "lr": (1e-3, 2e-3),
        "batch": (64, 64),
        "top_k": (10, 10),
        "budget": (0.5, 0.5),
        "images": (50_000, 3000),
        "levels": (256, 2),
        "likelihood": (1000, 100),
        "samples": (1000, 100),
    },
    variants=("bits",),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
