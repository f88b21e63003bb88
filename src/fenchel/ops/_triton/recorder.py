"""Notes the launches of an operation on a GPU, and whether it does anything else."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_ALLOWED = frozenset(
    (
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
        _aten.promote_types.default,
    )
)
_FORMATS = {"i32": "<i4x", "i64": "<q", "u64": "<Q", "fp32": "<f4x", "fp64": "<d"}
"""How Triton passes numbers, each in a word of eight bytes."""
_NO_SCRATCH = ((-1, 0), (-1, 0))
"""The last arguments of a kernel: memory of Triton's own, for kernels that need some."""
_NUMBER = -1
_ACTIVE = threading.local()

Word = tuple[int, int]
"""−1 and the bits of a number; or which tensor, and how many bytes from its start."""


class Launch(NamedTuple):
    """A compiled kernel, None in Triton's interpreter; its grid; all its arguments."""

    compiled: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


class RefusedError(Exception):
    """A call cannot be repeated by its launches alone."""


class Recorder(TorchDispatchMode):
    """While it is entered, the launches of this thread are noted in `launches`, and operators that
    neither allocate nor only make views in `others`."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.others: list[str] = []
        self._is_launching = False

    def __enter__(self) -> Recorder:
        _ACTIVE.recorder = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _ACTIVE.recorder = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not (self._is_launching or func.is_view or func in _ALLOWED):
            self.others.append(str(func))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def launching(self) -> Iterator[None]:
        """For a launch by Triton, which may use operators of PyTorch."""
        self._is_launching = True
        try:
            yield
        finally:
            self._is_launching = False

    def note(self, compiled: Any, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        # The arguments stay in memory, so that no two tensors of a call have the same place.
        self.launches.append(Launch(compiled, grid, arguments))

    def described(
        self, inputs: list[Tensor], results: tuple[Tensor, ...]
    ) -> tuple[list[int], list[tuple]]:
        """The bytes of each buffer, and of each launch the function, grid, threads, shared memory
        and words. Tensors count from the inputs over the results to the buffers.

        Raises:
            RefusedError: if the call is more than launches, or some launch is of an unusual kind.
        """
        if self.others:
            raise RefusedError(f"it calls {self.others[0]}")
        places = _Places(inputs, results)
        launches = [_described(launch, places) for launch in self.launches]
        return places.buffers, launches


def active() -> Recorder | None:
    """The recorder of this thread."""
    return getattr(_ACTIVE, "recorder", None)


class _Places:
    """Where the tensors of a call are in memory."""

    def __init__(self, inputs: list[Tensor], results: tuple[Tensor, ...]) -> None:
        self.buffers: list[int] = []
        self._inputs = {x.data_ptr(): i for i, x in enumerate(inputs)}
        self._memory = {_start(x): len(inputs) + i for i, x in enumerate(results)}
        starts = {_start(x) for x in inputs}
        # Two inputs in one place may be in two places the next time.
        if len(self._inputs) < len(inputs) or len(self._memory) < len(results):
            raise RefusedError("two of its tensors are one")
        if starts & self._memory.keys() or any(x.storage_offset() for x in results):
            raise RefusedError("a result is a view")
        self._foreign = starts
        self._count = len(inputs) + len(results)

    def word(self, tensor: Tensor) -> Word:
        """A tensor as an argument: of which one's memory, and from where in it."""
        place, start = tensor.data_ptr(), _start(tensor)
        if place in self._inputs:
            return self._inputs[place], 0
        if start in self._foreign or not start:
            raise RefusedError("it uses a part of an input")
        if start not in self._memory:
            self._memory[start] = self._count + len(self.buffers)
            self.buffers.append(tensor.untyped_storage().nbytes())
        return self._memory[start], place - start


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _described(launch: Launch, places: _Places) -> tuple:
    compiled, grid, arguments = launch
    if compiled is None:
        raise RefusedError("Triton interprets its kernels")
    metadata = compiled.metadata
    unusual = (
        "launch_cooperative_grid",
        "launch_pdl",
        "global_scratch_size",
        "profile_scratch_size",
    )
    if metadata.num_ctas != 1 or any(getattr(metadata, name) for name in unusual):
        raise RefusedError("a kernel needs more than a grid")
    kinds = compiled.src.signature.values()
    if len(kinds) != len(arguments):
        raise RefusedError("a kernel has other arguments")
    words: list[Word] = []
    for kind, value in zip(kinds, arguments, strict=True):
        if kind == "constexpr":
            continue
        if isinstance(value, Tensor) and kind[0] == "*":
            words.append(places.word(value))
        elif kind in _FORMATS:
            bits = struct.pack(_FORMATS[kind], value)
            words.append((_NUMBER, int.from_bytes(bits, "little")))
        else:
            raise RefusedError(f"an argument is of type {kind}")
    x, y, z = (*grid, 1, 1)[:3]
    words += _NO_SCRATCH
    return compiled.function, (x, y, z), 32 * metadata.num_warps, metadata.shared, words
