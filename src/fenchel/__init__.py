"""Differentiable choice: sparse and structured alternatives to softmax, and their losses."""

from . import _interrupts as _interrupts  # before what takes seconds to import

# isort: split
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import mappings, nn
from .losses._fenchel_young import FenchelYoungLoss, fenchel_young_loss
from .losses._linear import linear_fenchel_young_loss
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

if _TYPE_CHECKING:
    from . import attention as attention
    from . import latent, structures
    from .losses._structured import StructuredLoss, structured_loss
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

_LATER = {
    "Bits": "structures._bits",
    "Budget": "structures._budget",
    "Choice": "structures._choice",
    "Custom": "structures._custom",
    "DependencyTree": "structures._tree",
    "FactorGraph": "structures._factor_graph",
    "Matching": "structures._matching",
    "Posterior": "structures._posterior",
    "Sequence": "structures._sequence",
    "StructuredLoss": "losses._structured",
    "attention": "attention",
    "latent": "latent",
    "log_partition": "structures._inference",
    "map_inference": "structures._inference",
    "marginals": "structures._inference",
    "sparsemap": "structures._sparsemap",
    "structured_loss": "losses._structured",
    "structures": "structures",
    "testing": "testing",
}
"""The packages that are imported when they are first used, and where names of theirs are."""


def __getattr__(name: str) -> object:
    """What is imported when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(f"{__name__}.{_LATER[name]}")
    found = module if _LATER[name] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
