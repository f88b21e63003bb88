"""What the Triton kernels share, and how an operator finds its own: `ops/<op>/triton.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch


def _status() -> tuple[bool, str]:
    """Whether CUDA tensors get the Triton kernels, and a sentence about it."""
    if os.environ.get("FENCHEL_KERNELS") == "reference":
        return False, "switched off by FENCHEL_KERNELS=reference; unset FENCHEL_KERNELS to use them"
    if find_spec("triton") is None:
        return False, "without Triton; install a CUDA build of torch, which brings it"
    if torch.version.hip is not None:
        return False, "not for AMD GPUs, where the slower references are used"
    return True, "ready"


AVAILABLE, STATUS = _status()


def kernel(op: str, name: str, file: str = "triton") -> Callable[..., Any]:
    """The function of that name in `ops/<op>/<file>.py`, imported when it is first called."""

    @cache
    def load() -> Callable[..., Any]:
        return getattr(import_module(f"fenchel.ops.{op}.{file}"), name)

    def call(*arguments: Any) -> Any:
        return load()(*arguments)

    return call
