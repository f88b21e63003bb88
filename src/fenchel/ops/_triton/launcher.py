"""Launches kernels: what Triton finds out about the arguments of a launch is kept."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from . import recorder

try:
    from triton.runtime.cache import triton_key
except ImportError:  # Triton 3.4
    from triton.compiler.compiler import triton_key

_MAX_KINDS = 4096
"""How many kinds of arguments are kept."""
_HALF = 2**31
_MAX_THREADS = 16
"""How many kernels are compiled at the same time."""
_LOADING = Lock()
"""Up to Triton 3.6 each kernel is launched by a module of its own, and all of these have one name.
Of two that are loaded at the same time, one may get the function of the other."""


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
        self._launch(grid, arguments, *_looked_at(arguments))

    def _first(self, key: tuple, grid: tuple[int, ...], arguments: tuple) -> None:
        notes = recorder.active()
        with _LOADING, nullcontext() if notes is None else notes.launching():
            compiled = self._kernel[grid](*arguments, **self._constants)
        if notes is not None:
            notes.note(compiled, grid, (*arguments, *self._values))
        # It is None in the interpreter. A tensor of the CPU, whose device is −1, is left to Triton,
        # which asks the driver whether the GPU can read its memory.
        if compiled is not None and -1 not in key and len(self._compiled) < _MAX_KINDS:
            self._compiled[key] = (
                compiled.run, compiled.function, compiled.packed_metadata, compiled
            )  # fmt: skip

    def _launch(
        self, grid: tuple[int, ...], arguments: tuple, key: tuple, words: list[int | float | None]
    ) -> None:
        known = self._compiled.get(key)
        if known is None:
            self._first(key, grid, arguments)
            return
        run, function, metadata, compiled = known
        stream = torch._C._cuda_getCurrentRawStream(key[0])
        x, y, z = (*grid, 1, 1)[:3]
        run(x, y, z, stream, function, metadata, None, None, None, *words, *self._values)
        notes = recorder.active()
        if notes is not None:
            notes.note(compiled, grid, (*arguments, *self._values))

    def _compile(self, grid: tuple[int, ...], arguments: tuple) -> Any:
        """The compiled kernel of a launch. What launches it is compiled too, but not kept, see
        `_LOADING`."""
        with torch.cuda.device_of(arguments[0]):
            compiled = self._kernel.warmup(*arguments, grid=grid, **self._constants)
            triton.runtime.driver.active.launcher_cls(compiled.src, compiled.metadata)
        return compiled


class Launched(NamedTuple):
    """A launch that was made: the compiled kernel, None in Triton's interpreter; the grid; the
    arguments, as given and as the kernel takes them; the kernel's constants."""

    known: tuple | None
    grid: tuple[int, ...]
    arguments: tuple
    words: list[int | float | None]
    values: tuple


class Launches:
    """Launches that follow each other; kernels that are new are compiled at the same time."""

    def __init__(self) -> None:
        self._all: list[tuple[Launcher, tuple[int, ...], tuple]] = []

    def add(
        self, launcher: Launcher, grid: tuple[int, ...], *arguments: Tensor | float | None
    ) -> None:
        self._all.append((launcher, grid, arguments))

    def run(self, later: "Callable[[Launches], None] | None" = None) -> list[Launched]:
        """Launches all, in order, and forgets them. Returns what was launched.

        Args:
            later: makes launches that will follow in another call. Where kernels are new, theirs
                are compiled, too, and nothing of them is launched.
        """
        launches, self._all = self._all, []
        looked_at = [_looked_at(arguments) for _, _, arguments in launches]
        if not triton.knobs.runtime.interpret:
            unknown = _unknown(launches, looked_at)
            if unknown and later is not None:
                rehearsal = _Rehearsal()
                later(rehearsal)
                expected = rehearsal._all
                unknown |= _unknown(expected, [_looked_at(x) for _, _, x in expected])
            if len(unknown) > 1:
                _prepare(list(unknown.values()))
        launched = []
        for (one, grid, arguments), (key, words) in zip(launches, looked_at, strict=True):
            one._launch(grid, arguments, key, words)
            known = one._compiled.get(key)
            launched.append(Launched(known, grid, arguments, words, one._values))
        return launched


class _Rehearsal(Launches):
    """Launches that are only noted."""

    def run(self, later: Callable[[Launches], None] | None = None) -> list[Launched]:
        return []


def _unknown(launches: list[tuple], looked_at: list[tuple]) -> dict[tuple, tuple]:
    """One launch of each kernel that is new."""
    return {
        (id(launch[0]), key): launch
        for launch, (key, _) in zip(launches, looked_at, strict=True)
        if key not in launch[0]._compiled
    }


def _prepare(launches: list[tuple]) -> None:
    """Compiles the kernels of launches at the same time, and loads them one after the other. What
    every thread would do first is done once: Triton hashes its library, of 400 MB, and compiles
    what talks to the driver."""
    with _LOADING, ThreadPoolExecutor(min(len(launches), _MAX_THREADS)) as pool:
        hashed = pool.submit(triton_key)
        triton.runtime.driver.active.get_current_device()
        hashed.result()
        for kernel in list(pool.map(lambda x: x[0]._compile(*x[1:]), launches)):
            _ = kernel.run


def _looked_at(arguments: tuple) -> tuple[tuple, list[int | float | None]]:
    """What tells apart launches that need different compiled kernels: the type of a tensor, its
    device and whether it is aligned; of a size whether it is 1, a multiple of 16, and has 32 bits.
    And the arguments as a compiled kernel takes them: of a tensor the address, or Triton would ask
    for it, and the driver whether it is one of the GPU's, at every launch."""
    key: list[Any] = [arguments[0].get_device()]
    words = list(arguments)
    for i, x in enumerate(arguments):
        if type(x) is int:
            key.append((1 if x == 1 else 0 if x & 15 else 16) if -_HALF <= x < _HALF else x)
        elif isinstance(x, Tensor):
            words[i] = address = x.data_ptr()
            key += x.dtype, x.get_device(), address & 15 == 0
        else:
            key.append(type(x))
    return tuple(key), words


@lru_cache(maxsize=_MAX_KINDS)
def launcher(kernel: Any, **constants: Any) -> Launcher:
    """The launcher of a kernel with these constants."""
    return Launcher(kernel, constants)
