"""Functions of the packages that fenchel is compared with; none needs to be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

PACKAGES = ("entmax", "torch-struct", "adasplash", "liger-kernel", "cut-cross-entropy")
"""As they are named where packages are published."""
_BLOCKS = {(128, 4), (512, 4), (512, 8)}
"""Entries of a block and warps: three of AdaSplash's 15 configurations; all take minutes."""


class SkippedError(Exception):
    """A package is not measured: it is not installed, or there is no time left."""


@cache
def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.split(".")[0]:
            raise SkippedError("not installed") from error
        raise


def load(module: str, name: str) -> Callable[..., Any]:
    """A function of a module, which is imported at the first call."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(_module(module), name)(*arguments, **options)

    return call


@cache
def _adasplash(width: int) -> Callable[..., Tensor]:
    """AdaSplash's mapping, tuned for this width; it would keep the choice of the first one."""
    module = _module("adasplash.triton_entmax_v2")
    for kernel in (module._fwd_entmax, module._bwd_entmax):
        kernel.cache.clear()
        kernel.configs = [
            config
            for config in kernel.configs
            if (config.kwargs["BLOCK_N"], config.num_warps) in _BLOCKS
        ]
    return module.triton_entmax


def adasplash_entmax(x: Tensor, alpha: float) -> Tensor:
    """α-entmax by AdaSplash, in Triton."""
    return _adasplash(x.shape[-1])(x, alpha=alpha)
