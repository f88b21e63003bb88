"""Functions of the packages that fenchel is compared with; none needs to be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PACKAGES = ("entmax", "torch-struct", "adasplash", "liger-kernel", "cut-cross-entropy")
"""As they are named where packages are published."""
_BLOCKS = {(128, 4), (512, 4), (512, 8)}
"""Entries of a block and warps: three of AdaSplash's 15 configurations; all take minutes."""


_WARPS_STAGES = {(2, 3), (4, 2), (4, 3)}
"""Three of the six that AdaSplash-2 tries for each of its kernels."""
_BLOCK = {"BLOCK_M": 128, "BLOCK_N": 64}
"""Of its five pairs of blocks this one."""
_RUNS = 3
"""Measurements of a configuration of AdaSplash-2; by default it takes 0.1 s."""


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


def _median_time(run: Callable[[], Any], quantiles: tuple[float, ...]) -> list[float]:
    """A few runs, for Triton's tuning; it wants as many times as quantiles."""
    run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_RUNS + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(events))
    return [times[len(times) // 2]] * len(quantiles)


@cache
def _adasplash_attention() -> Callable[..., Tensor]:
    """AdaSplash-2 with fewer configurations; all take minutes for each length."""
    module = _module("adasplash.adasplash_v2")
    for kernel in vars(module).values():
        if hasattr(kernel, "configs"):
            kernel._do_bench = _median_time
            kernel.configs = [
                config
                for config in kernel.configs
                if (config.num_warps, config.num_stages) in _WARPS_STAGES
                and config.kwargs in ({}, _BLOCK)
            ]
    return module.sparse_attn


def adasplash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention with 1.5-entmax by AdaSplash-2, for lengths that are powers of two."""
    return _adasplash_attention()(query, key, value)
