"""The mappings: one file each; importing this folder registers them all."""

import importlib
import pkgutil

from ._base import AbstractMapping, Support
from ._protocols import (
    HasClosure,
    HasGroups,
    HasKernels,
    HasParameter,
    HasState,
    HasThreshold,
)
from ._registry import examples, get, names

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "AbstractMapping",
    "HasClosure",
    "HasGroups",
    "HasKernels",
    "HasParameter",
    "HasState",
    "HasThreshold",
    "Support",
    "examples",
    "get",
    "names",
]
