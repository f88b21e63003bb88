"""Notes the launches of a call on a GPU for the binding, which repeats them in calls like it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._triton.recorder import Recorder, RefusedError

TRITON = ("3.6", "3.7")
"""The versions of Triton whose way to pass arguments to a kernel is known."""
_KEPT: set[Any] = set()
"""The compiled kernels whose launches are repeated."""

Record = tuple[tuple[int, int, int], list[int], list[tuple]]
"""The addresses of `_driver`, and what `Recorder.described` returns."""


@cache
def _driver() -> tuple[int, int, int]:
    """The addresses of functions that launch a kernel, and tell the current device and stream.

    Raises:
        RefusedError: if there is no such function, or an unknown Triton.
    """
    if ".".join(version("triton").split(".")[:2]) not in TRITON:
        raise RefusedError(f"it is for Triton {' and '.join(TRITON)}")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        pytorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        found = (
            cuda.cuLaunchKernel,
            cuda.cuCtxGetDevice,
            pytorch.aoti_torch_get_current_cuda_stream,
        )
    except (OSError, AttributeError) as error:
        raise RefusedError(str(error)) from None
    launch, device, stream = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found)
    return launch, device, stream


def noted(
    function: Callable[..., Any],
    tensors: tuple[Tensor, ...],
    parameter: float | Tensor,
    option: float,
) -> tuple[tuple[Tensor, ...], Record | None]:
    """The results of `function(*tensors, parameter, option)`, and what to repeat for other tensors
    like these; None if that would not do.

    Args:
        function: an operation on a GPU.
        tensors: contiguous, on one device.
        parameter: a number, or one per row, (..., 1).
        option: a number.
    """
    with torch.cuda.device_of(tensors[0]), Recorder() as recorder:
        out = function(*tensors, parameter, option)
    results = out if isinstance(out, tuple) else (out,)
    inputs = [*tensors, parameter] if isinstance(parameter, Tensor) else list(tensors)
    try:
        driver = _driver()
        buffers, launches = recorder.described(inputs, results)
    except RefusedError:
        return results, None
    _KEPT.update(launch.compiled for launch in recorder.launches)
    return results, (driver, buffers, launches)
