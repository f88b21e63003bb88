"""What the Triton kernels share, and how an operator finds its own: `ops/<op>/triton.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

AVAILABLE = (
    find_spec("triton") is not None
    and torch.version.hip is None  # the kernels speak PTX in two places
    and os.environ.get("FENCHEL_KERNELS") != "reference"
)


def kernel(op: str, name: str) -> Callable[..., Any]:
    """The function of that name in `ops/<op>/triton.py`, imported when it is first called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"fenchel.ops.{op}.triton"), name)(*arguments)

    return call
