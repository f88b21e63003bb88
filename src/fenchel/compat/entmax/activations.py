"""The names of `entmax.activations`."""

# Absolute imports, so that `import entmax.activations` finds the same objects where
# `sys.modules["entmax"]` is this package.
from fenchel.compat.entmax._functions import Entmax15Function, SparsemaxFunction
from fenchel.compat.entmax._mappings import Entmax15, Sparsemax, entmax15, sparsemax

__all__ = [
    "Entmax15",
    "Entmax15Function",
    "Sparsemax",
    "SparsemaxFunction",
    "entmax15",
    "sparsemax",
]
