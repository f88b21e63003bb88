"""Launches kernels: what Triton finds out about the arguments of a launch is kept."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_MAX_KINDS = 4096
"""How many kinds of arguments are kept."""


class Launcher:
    """A kernel with its constants, which stand last among its arguments.

    Triton looks at every argument of every launch to tell which compiled kernel fits. Here a launch
    whose arguments are like those of an earlier one goes to the same compiled kernel at once, which
    takes the host a third of the time. Triton's launch hooks do not see it.
    """

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        self._kernel, self._constants = kernel, constants
        self._values = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self._compiled: dict[tuple, Any] = {}

    def __call__(
        self, grid: tuple[int, ...], first: Tensor, *others: Tensor | float | None
    ) -> None:
        """Launches on the device of the first argument, which must be the current one."""
        arguments = first, *others
        device = first.get_device()
        key = (device, *map(_kind, arguments))
        known = self._compiled.get(key)
        if known is not None:
            run, function, metadata = known
            stream = torch._C._cuda_getCurrentRawStream(device)
            x, y, z = (*grid, 1, 1)[:3]
            run(x, y, z, stream, function, metadata, None, None, None, *arguments, *self._values)
            return
        compiled = self._kernel[grid](*arguments, **self._constants)
        if len(self._compiled) < _MAX_KINDS and compiled is not None:  # as it is in the interpreter
            self._compiled[key] = compiled.run, compiled.function, compiled.packed_metadata


def _kind(argument: Tensor | float | None) -> Any:
    """What a kernel is compiled for: the type of a tensor and whether it is aligned, or a size."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument if isinstance(argument, int) else None


@lru_cache(maxsize=_MAX_KINDS)
def launcher(kernel: Any, **constants: Any) -> Launcher:
    """The launcher of a kernel with these constants."""
    return Launcher(kernel, constants)
