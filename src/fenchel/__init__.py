"""Differentiable choice: sparse and structured alternatives to softmax, and their losses."""

from . import mappings
from .losses import FenchelYoungLoss, fenchel_young_loss, linear_fenchel_young_loss
from .mappings._entmax import Entmax, entmax
from .mappings._fusedmax import Fusedmax, fusedmax
from .mappings._general import ConvergenceError, ConvergenceWarning, General
from .mappings._ksubset import Ksubset, ksubset
from .mappings._normmax import Normmax, normmax
from .mappings._oscarmax import Oscarmax, oscarmax
from .mappings._pnormmax import Pnormmax, pnormmax
from .mappings._softmax import Softmax, softmax
from .mappings._sparsemax import Sparsemax, sparsemax

__version__ = "0.1.0"

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "Entmax",
    "FenchelYoungLoss",
    "Fusedmax",
    "General",
    "Ksubset",
    "Normmax",
    "Oscarmax",
    "Pnormmax",
    "Softmax",
    "Sparsemax",
    "entmax",
    "fenchel_young_loss",
    "fusedmax",
    "ksubset",
    "linear_fenchel_young_loss",
    "mappings",
    "normmax",
    "oscarmax",
    "pnormmax",
    "softmax",
    "sparsemax",
]
