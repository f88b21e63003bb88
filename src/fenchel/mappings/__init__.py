"""The mappings: one file each; importing this folder registers them all."""

import importlib
import pkgutil

import torch

from ..ops import _binding
from ._base import AbstractMapping, Support
from ._protocols import (
    HasClosure,
    HasGroups,
    HasKernels,
    HasParameter,
    HasState,
    HasTerms,
    HasThreshold,
)
from ._registry import examples, get, names

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

with torch.inference_mode(False), torch.enable_grad():
    _scores = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
    _binding.register_node(get("softmax")(_scores))

__all__ = [
    "AbstractMapping",
    "HasClosure",
    "HasGroups",
    "HasKernels",
    "HasParameter",
    "HasState",
    "HasTerms",
    "HasThreshold",
    "Support",
    "examples",
    "get",
    "names",
]
