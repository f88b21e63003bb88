"""The names of `entmax.losses`."""

# Absolute imports: see `activations.py`.
from fenchel.compat.entmax._functions import (
    Entmax15LossFunction,
    EntmaxBisectLossFunction,
    NormmaxBisectLossFunction,
    SparsemaxBisectLossFunction,
    SparsemaxLossFunction,
)
from fenchel.compat.entmax._losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from fenchel.compat.entmax._mappings import (
    entmax15,
    entmax_bisect,
    normmax_bisect,
    sparsemax,
    sparsemax_bisect,
)

__all__ = [
    "Entmax15Loss",
    "Entmax15LossFunction",
    "EntmaxBisectLoss",
    "EntmaxBisectLossFunction",
    "NormmaxBisectLoss",
    "NormmaxBisectLossFunction",
    "SparsemaxBisectLoss",
    "SparsemaxBisectLossFunction",
    "SparsemaxLoss",
    "SparsemaxLossFunction",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
