"""A GPU that is not there: Triton compiles kernels for it, and its launches are noted.

`libcuda.c` takes the place of CUDA's driver, so that all of Triton that stands before the driver
is what runs on a GPU. Tensors are those of the CPU, and say that they are on a GPU. This is for a
process of its own, with what is made of `libcuda.c` as libcuda.so.1.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.compiler.compiler import CompiledKernel

from fenchel.ops._triton.launcher import Launcher

INVALID_VALUE = 1
_aten = torch.ops.aten
_EMPTY = (_aten.empty.memory_format, _aten.new_empty.default)
_pointer = ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, _pointer, ctypes.POINTER(ctypes.c_uint), _pointer, ctypes.c_uint,
    ctypes.POINTER(_pointer),
)  # fmt: skip
_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)


class Noted(NamedTuple):
    """A launch as the driver sees it. The sizes are the grid, the threads and the shared memory."""

    function: int
    sizes: tuple[int, ...]
    stream: int
    num_attributes: int
    parameters: tuple[bytes, ...]


def parameter_sizes(ptx: str) -> list[int]:
    """The bytes of each of a kernel's parameters."""
    found = re.search(r"\.entry \w+\((.*?)\)", ptx, re.DOTALL)
    assert found is not None
    lines = found[1].split(",\n")
    sizes = [int(re.findall(r"\.param \.[busf](\d+)", line)[0]) // 8 for line in lines]
    assert len(sizes) == ptx.count("_param_", found.start(1), found.end(1))
    return sizes


class Driver(CudaDriver):
    """Triton's own, for the device and the stream that the GPU says are the current ones."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        super().__init__()
        self.get_current_device = lambda: gpu.device
        self.get_current_stream = gpu.stream

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Gpu:
    """Notes what each thread launches."""

    def __init__(self) -> None:
        self.device = 0
        self.streams = 0x1000
        """The current stream of the first device."""
        self.on_host: set[int] = set()
        """Addresses of tensors that are on the CPU."""
        self.pinned: set[int] = set()
        """The same, but a GPU can read them."""
        self._sizes: dict[int, list[int]] = {}
        self._noted = threading.local()
        self._callbacks = _LAUNCH(self._launch), _ADDRESS(self._is_known)
        library = ctypes.CDLL("libcuda.so.1")
        for name, callback in zip(("on_launch", "on_address"), self._callbacks, strict=True):
            _pointer.in_dll(library, name).value = ctypes.cast(callback, _pointer).value
        self._patch()

    def _patch(self) -> None:
        gpu, load = self, CompiledKernel._init_handles

        def loaded(kernel: Any) -> None:
            load(kernel)
            gpu._sizes[kernel.function] = parameter_sizes(kernel.asm["ptx"])

        CompiledKernel._init_handles = loaded
        Tensor.get_device = lambda x: gpu.device_of(x.data_ptr())  # type: ignore[method-assign]
        torch._C._cuda_getCurrentRawStream = self.stream
        torch.cuda.device_of = lambda _: nullcontext()  # type: ignore[assignment]
        triton.runtime.driver.set_active(Driver(self))

    @property
    def num_asked(self) -> int:
        """How often this thread asked the driver about an address."""
        return getattr(self._noted, "num_asked", 0)

    def stream(self, device: int) -> int:
        """The current stream, of the current device if it is −1."""
        return self.streams + (self.device if device < 0 else device)

    def device_of(self, address: int) -> int:
        return -1 if address in self.on_host | self.pinned else self.device

    @contextmanager
    def notes(self) -> Iterator[list[Noted]]:
        """The launches of this thread meanwhile; they are not among those of a block around."""
        before = getattr(self._noted, "launches", None)
        self._noted.launches = []
        try:
            yield self._noted.launches
        finally:
            self._noted.launches = before

    def add(self, launches: list[Noted]) -> None:
        """Notes launches of a block for the one around it."""
        if getattr(self._noted, "launches", None) is not None:
            self._noted.launches += launches

    def _launch(
        self, function: int, sizes: Any, stream: int | None, num_attributes: int, parameters: Any
    ) -> int:
        values = tuple(
            ctypes.string_at(parameters[i], size) for i, size in enumerate(self._sizes[function])
        )
        self.add([Noted(function, tuple(sizes[:7]), stream or 0, num_attributes, values)])
        return 0

    def _is_known(self, address: int) -> int:
        self._noted.num_asked = self.num_asked + 1
        return INVALID_VALUE if address in self.on_host else 0


class Allocations(TorchDispatchMode):
    """Keeps what this thread allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY:
            self.tensors.append(result)
        return result

    def placed(self, launch: Noted) -> Noted:
        """The launch with addresses of what was allocated as a number and an offset."""
        return launch._replace(parameters=tuple(map(self._place, launch.parameters)))

    def _place(self, parameter: bytes) -> Any:
        address = int.from_bytes(parameter, "little")
        for i, x in enumerate(self.tensors):
            if len(parameter) == 8 and 0 <= address - x.data_ptr() < max(x.nbytes, 1):
                return i, address - x.data_ptr()
        return parameter


class Comparison:
    """Launches again by Triton what a `Launcher` launches, and compares what the driver gets."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self.num_new = self.num_known = self.num_repeated = self.num_parameters = 0
        self._launch = Launcher._launch
        Launcher._launch = lambda *given: self._compare(*given)

    def _compare(self, one: Launcher, grid: Any, arguments: Any, key: Any, words: Any) -> None:
        is_known, asked = key in one._compiled, self.gpu.num_asked
        with self.gpu.notes() as made:
            self._launch(one, grid, arguments, key, words)
        assert not is_known or self.gpu.num_asked == asked
        with self.gpu.notes() as expected:
            one._kernel[grid](*arguments, **one._constants)
        assert made == expected, (one._kernel.fn.__name__, made, expected)
        assert len(made) == (0 not in grid)
        if is_known:
            self.num_known += len(made)
            self.num_parameters += sum(len(x.parameters) for x in made)
        else:
            self.num_new += len(made)
        self.gpu.add(made)

    def count_repeated(self, made: list[Noted]) -> None:
        """Counts launches by a program, which were as they should be."""
        self.num_repeated += len(made)
        self.num_parameters += sum(len(x.parameters) for x in made)

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Triton says that a tensor is on the CPU."""
        with pytest.raises(ValueError, match=r"cpu tensor\?"):
            yield


def main(cases: dict[str, Callable[[Comparison], None]]) -> None:
    """Does the case that is named on the command line, and prints what was compared."""
    comparison = Comparison()
    with comparison.gpu.notes():
        cases[sys.argv[1]](comparison)
    of = ("new", "known", "repeated", "parameters")
    counts = [f"{name} {getattr(comparison, f'num_{name}')}" for name in of]
    sys.stdout.write("\n".join(counts))
