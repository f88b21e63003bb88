"""Differentiable choice: sparse and structured alternatives to softmax, and their losses."""

from . import _interrupts as _interrupts  # before what takes seconds to import

# isort: split
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import mappings, nn, structures
from .losses import (
    FenchelYoungLoss,
    StructuredLoss,
    fenchel_young_loss,
    linear_fenchel_young_loss,
    structured_loss,
)
from .mappings._entmax import Entmax, entmax
from .mappings._fusedmax import Fusedmax, fusedmax
from .mappings._general import ConvergenceError, ConvergenceWarning, General
from .mappings._ksubset import Ksubset, ksubset
from .mappings._normmax import Normmax, normmax
from .mappings._oscarmax import Oscarmax, oscarmax
from .mappings._pnormmax import Pnormmax, pnormmax
from .mappings._softmax import Softmax, softmax
from .mappings._sparsemax import Sparsemax, sparsemax
from .ops._status import kernels
from .structures._bits import Bits
from .structures._budget import Budget
from .structures._choice import Choice
from .structures._custom import Custom
from .structures._factor_graph import FactorGraph
from .structures._inference import log_partition, map_inference, marginals
from .structures._matching import Matching
from .structures._posterior import Posterior
from .structures._sequence import Sequence
from .structures._sparsemap import sparsemap
from .structures._tree import DependencyTree

if _TYPE_CHECKING:
    from . import attention as attention
    from . import latent

__version__ = "0.1.0"

__all__ = [
    "Bits",
    "Budget",
    "Choice",
    "ConvergenceError",
    "ConvergenceWarning",
    "Custom",
    "DependencyTree",
    "Entmax",
    "FactorGraph",
    "FenchelYoungLoss",
    "Fusedmax",
    "General",
    "Ksubset",
    "Matching",
    "Normmax",
    "Oscarmax",
    "Pnormmax",
    "Posterior",
    "Sequence",
    "Softmax",
    "Sparsemax",
    "StructuredLoss",
    "entmax",
    "fenchel_young_loss",
    "fusedmax",
    "kernels",
    "ksubset",
    "latent",
    "linear_fenchel_young_loss",
    "log_partition",
    "map_inference",
    "mappings",
    "marginals",
    "nn",
    "normmax",
    "oscarmax",
    "pnormmax",
    "softmax",
    "sparsemap",
    "sparsemax",
    "structured_loss",
    "structures",
]


def __getattr__(name: str) -> object:
    """The packages that are imported when they are first used."""
    if name in ("attention", "latent"):
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
