"""A driver whose kernels run in Triton's interpreter: the binding for a GPU on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.ops import _binding
from fenchel.ops._binding import replay
from fenchel.ops._triton import recorder
from fenchel.ops._triton.launcher import Launcher

STREAM = 0x57
NUMBERS = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int8: "*i8",
}
USUAL = {
    "num_warps": 4,
    "num_ctas": 1,
    "shared": 96,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
}
_unsigned, _pointer = ctypes.c_uint, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, _pointer, *[_unsigned] * 7, _pointer, ctypes.POINTER(_pointer), _pointer
)
_DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(_pointer))


def kind_of(value: Any) -> str:
    """The type of an argument as Triton writes it."""
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if value is None or (type(value) is int and value == 1):
        return "constexpr"
    if isinstance(value, float):
        return "fp64"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compiled(function: int, kinds: list[str], **unusual: Any) -> Any:
    """What Triton returns for a launch."""
    return SimpleNamespace(
        function=function,
        metadata=SimpleNamespace(**{**USUAL, **unusual}),
        src=SimpleNamespace(signature=dict(enumerate(kinds))),
    )


class _Compiled(SimpleNamespace):
    __hash__ = object.__hash__


def _tensor_at(address: int, like: Tensor) -> Tensor:
    """Memory as a tensor with the strides of another."""
    count = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_char * (count * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


class FakeGpu:
    """What was launched, and with which status launches end."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.notes = 0
        self.status = 0
        self.device = -1  # as that of CPU tensors
        self.errors: list[Exception] = []
        self._kernels: list[tuple[Any, list[str], tuple]] = []
        self._functions = (
            _LAUNCH(self._launch),
            _DEVICE(self._current_device),
            _STREAM(self._current_stream),
        )

    def addresses(self) -> tuple[int, ...]:
        return tuple(ctypes.cast(one, _pointer).value or 0 for one in self._functions)

    def first(self, launcher: Any, key: tuple, grid: tuple[int, ...], arguments: tuple) -> None:
        """`Launcher._first`, as if Triton compiled."""
        notes = recorder.active()
        if notes is None:
            launcher._kernel[grid](*arguments, **launcher._constants)
            return
        with notes.launching():
            launcher._kernel[grid](*arguments, **launcher._constants)
        kinds = [*map(kind_of, arguments), *["constexpr"] * len(launcher._values)]
        self._kernels.append((launcher, kinds, arguments))
        made = compiled(len(self._kernels), kinds)
        notes.note(_Compiled(**vars(made)), grid, (*arguments, *launcher._values))
        self.notes += 1

    def _launch(self, function: int, *rest: Any) -> int:
        try:
            *sizes, stream, parameters, extra = rest
            launcher, kinds, template = self._kernels[function - 1]
            places = iter(range(64))
            arguments = []
            for kind, value in zip(kinds, template, strict=False):
                if kind == "constexpr":
                    arguments.append(value)
                elif kind[0] == "*":
                    word = ctypes.c_uint64.from_address(parameters[next(places)]).value
                    arguments.append(_tensor_at(word, value))
                else:
                    arguments.append(NUMBERS[kind].from_address(parameters[next(places)]).value)
            scratch = [
                ctypes.c_uint64.from_address(parameters[next(places)]).value for _ in range(2)
            ]
            self.launches.append((function, tuple(sizes), stream, extra, scratch))
            if not self.status:
                launcher._kernel[tuple(sizes[:3])](*arguments, **launcher._constants)
        except Exception as error:
            self.errors.append(error)
            return 999
        return self.status

    def _current_device(self, device: Any) -> int:
        device[0] = self.device
        return 0

    def _current_stream(self, device: int, stream: Any) -> int:
        stream[0] = STREAM
        return 0


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """Callables of the binding that are made here repeat launches for CPU tensors."""
    with pytest.MonkeyPatch.context() as patch:
        gpu = FakeGpu()
        patch.setattr(_binding, "DEVICE", "cpu")
        patch.setattr(replay, "_driver", gpu.addresses)
        patch.setattr(Launcher, "_first", lambda self, *rest: gpu.first(self, *rest))
        yield gpu
        assert not gpu.errors
