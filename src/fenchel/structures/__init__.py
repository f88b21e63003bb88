"""The structures: one file each; importing this folder registers them all.

>>> import fenchel
>>> trees = fenchel.structures.get("dependency_tree", n=2)
>>> fenchel.marginals(trees, torch.zeros(2, 2))
tensor([[0.5000, 0.5000],
        [0.5000, 0.5000]])
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._base import REGISTRY, AbstractStructure
from ._factors import AndOut, AtMostOne, Imply, Knapsack, Or, OrOut, Pair, Xor, XorOut
from ._posterior import GraphPosterior
from ._problem import RelaxedVertices, Vertices

get, names, examples = REGISTRY.get, REGISTRY.names, REGISTRY.examples

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")

if _TYPE_CHECKING:
    from ._gibbs import KBest, cross_entropy, entropy, k_best, kl, sample
    from ._perturbed import Perturbed

__all__ = [
    "AbstractStructure",
    "AndOut",
    "AtMostOne",
    "GraphPosterior",
    "Imply",
    "KBest",
    "Knapsack",
    "Or",
    "OrOut",
    "Pair",
    "Perturbed",
    "RelaxedVertices",
    "Vertices",
    "Xor",
    "XorOut",
    "cross_entropy",
    "entropy",
    "examples",
    "get",
    "k_best",
    "kl",
    "names",
    "sample",
]


def __getattr__(name: str) -> object:
    """Distributions over a structure, which are imported when they are first used."""
    if name in __all__:
        package = "_perturbed" if name == "Perturbed" else "_gibbs"
        return getattr(importlib.import_module(f"{__name__}.{package}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
