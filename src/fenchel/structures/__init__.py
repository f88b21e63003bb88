"""The structures: one file each; importing this folder registers them all."""

import importlib
import pkgutil

from ._base import REGISTRY, AbstractStructure
from ._problem import Vertices

get, names, examples = REGISTRY.get, REGISTRY.names, REGISTRY.examples

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["AbstractStructure", "Vertices", "examples", "get", "names"]
