"""The structures: one file each; importing this folder registers them all."""

import importlib
import pkgutil

from ._base import REGISTRY, AbstractStructure
from ._factors import AndOut, AtMostOne, Imply, Knapsack, Or, OrOut, Pair, Xor, XorOut
from ._posterior import GraphPosterior
from ._problem import RelaxedVertices, Vertices

get, names, examples = REGISTRY.get, REGISTRY.names, REGISTRY.examples

for _module in pkgutil.iter_modules(__path__):
    if not _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "AbstractStructure",
    "AndOut",
    "AtMostOne",
    "GraphPosterior",
    "Imply",
    "Knapsack",
    "Or",
    "OrOut",
    "Pair",
    "RelaxedVertices",
    "Vertices",
    "Xor",
    "XorOut",
    "examples",
    "get",
    "names",
]
