"""The mappings: one file each; importing this folder registers them all.

>>> import fenchel
>>> mapping = fenchel.mappings.get("entmax", alpha=1.5)
>>> mapping(torch.tensor([1.1, 0.93, 0.37, -0.4]))
tensor([0.4983, 0.3855, 0.1162, 0.0000])
"""

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
