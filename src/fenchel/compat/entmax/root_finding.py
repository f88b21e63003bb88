"""The names of `entmax.root_finding`."""

# Absolute imports: see `activations.py`.
from fenchel.compat.entmax._functions import (
    BudgetBisectFunction,
    EntmaxBisectFunction,
    NormmaxBisectFunction,
    SparsemaxBisectFunction,
)
from fenchel.compat.entmax._mappings import (
    BudgetBisect,
    EntmaxBisect,
    NormmaxBisect,
    SparsemaxBisect,
    budget_bisect,
    entmax_bisect,
    normmax_bisect,
    sparsemax_bisect,
)

__all__ = [
    "BudgetBisect",
    "BudgetBisectFunction",
    "EntmaxBisect",
    "EntmaxBisectFunction",
    "NormmaxBisect",
    "NormmaxBisectFunction",
    "SparsemaxBisect",
    "SparsemaxBisectFunction",
    "budget_bisect",
    "entmax_bisect",
    "normmax_bisect",
    "sparsemax_bisect",
]
