"""Finds and calls the C++ library: one per instruction set, behind a C ABI, through ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = Path(os.environ.get("FENCHEL_LIBRARY_DIR") or Path(__file__).parent)
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_NAMES = {torch.float32: "f32", torch.float64: "f64"}
LONGEST_ROW = 2**31 - 1
"""Entries are numbered with 32 bits inside the library."""


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The best library for this CPU, and a sentence about what was found."""
    wanted = os.environ.get("FENCHEL_KERNELS", "fast")
    if wanted not in ("fast", "reference"):
        raise ValueError(f"`FENCHEL_KERNELS` must be fast or reference, got {wanted!r}.")
    if wanted == "reference":
        return None, "switched off by FENCHEL_KERNELS=reference; unset FENCHEL_KERNELS to use it"

    def open_library(isa: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(_FOLDER / f"fenchel_native_{isa}{_SUFFIX}"))

    isa = os.environ.get("FENCHEL_ISA", "")
    try:
        if not isa:
            level = open_library("baseline").fenchel_x86_level()
            isa = {3: "v3", 4: "v4"}.get(level, "baseline")
        return open_library(isa), f"loaded, {isa} instruction set"
    except OSError as error:
        return None, (
            "not found, the slower references are used; install a C++17 compiler and CMake, then "
            f"reinstall fenchel ({error})"
        )


LIBRARY, STATUS = _load()


class Routine:
    """One function of the library for float32 and float64, called with what its letters say.

    Args:
        name: its name in the library, without `fenchel_` and the type.
        letters: one per argument but the thread count, which comes last: p for a tensor or None,
            i for an integer, d for a number.
    """

    def __init__(self, name: str, letters: str) -> None:
        self._functions = _functions(name, [*_types(letters), ctypes.c_int])

    def __call__(self, dtype: torch.dtype, *arguments: Any) -> None:
        """Runs the function on contiguous tensors whose numbers are of that type."""
        _check(self._functions[dtype](*_words(arguments), torch.get_num_threads()))


class Function:
    """One function of the library for float64 alone, called with what its letters say.

    Args:
        name: its name in the library, without `fenchel_`.
        letters: one per argument, as for `Routine`.
    """

    def __init__(self, name: str, letters: str) -> None:
        self._function = None if LIBRARY is None else _function(name, _types(letters))

    def __call__(self, *arguments: Any) -> None:
        """Runs the function on contiguous tensors."""
        if self._function is None:
            raise RuntimeError(f"the native library is {STATUS}.")
        _check(self._function(*_words(arguments)))


def _types(letters: str) -> list:
    types = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}
    return [types[letter] for letter in letters]


def _words(arguments: tuple) -> list:
    return [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]


def _function(name: str, types: list) -> Any:
    try:
        function = LIBRARY[f"fenchel_{name}"]  # type: ignore[index]
    except AttributeError:
        raise ImportError(
            f"the native library has no `{name}`: it is older than the package; build it "
            "again with `pip install .`, or set FENCHEL_KERNELS=reference."
        ) from None
    function.argtypes, function.restype = types, ctypes.c_int
    return function


def _functions(name: str, types: list) -> dict[torch.dtype, Any]:
    """The functions of the library of that name, by the type of their numbers."""
    if LIBRARY is None:
        return {}
    return {dtype: _function(f"{name}_{suffix}", types) for dtype, suffix in _NAMES.items()}


def _check(status: int) -> None:
    if status:
        raise MemoryError("the native library could not allocate its working memory.")


class Kernel:
    """One function of the library on contiguous rows (..., d) of float32 or float64.

    Its C arguments are the rows, the parameters, the number of rows, d, and the results.

    Args:
        name: its name in the library, without `fenchel_` and the type.
        inputs: how many tensors of rows it takes.
        parameters: for each parameter "rows" (one value per row) or "number" (one in all).
        results: how many pointers it writes to.
    """

    def __init__(
        self, name: str, inputs: int = 1, parameters: tuple[str, ...] = (), results: int = 1
    ) -> None:
        self._inputs, self._parameters = inputs, parameters
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        types: list[type] = [pointer] * inputs
        for word in parameters:
            types += {"rows": [pointer, integer], "integer": [integer]}.get(word, [ctypes.c_double])
        types += [integer, integer, *[pointer] * results, ctypes.c_int]
        self._functions = _functions(name, types)

    def write(self, arguments: tuple, *results: Tensor | None) -> None:
        """Runs the function on contiguous rows and parameters into results, some maybe None."""
        rows = arguments[0]
        d = rows.shape[-1]
        words: list = [tensor.data_ptr() for tensor in arguments[: self._inputs]]
        owners = []
        for word, value in zip(self._parameters, arguments[self._inputs :], strict=True):
            if word != "rows":
                words.append(value)
            elif isinstance(value, Tensor):
                values = value.broadcast_to((*rows.shape[:-1], 1)).to(torch.float64).contiguous()
                owners.append(values)
                words += (values.data_ptr(), 1)
            else:
                number, address = _number(value)
                owners.append(number)
                words += (address, 0)
        words += (rows.numel() // d, d)
        words += [None if result is None else result.data_ptr() for result in results]
        _check(self._functions[rows.dtype](*words, torch.get_num_threads()))

    def __call__(self, *arguments: Any) -> Tensor:
        """The result for contiguous rows and parameters, in a new tensor like the rows."""
        out = torch.empty_like(arguments[0])
        self.write(arguments, out)
        return out


@lru_cache(maxsize=64)
def _number(value: float) -> tuple[object, int]:
    """A number as a double in memory, which lives as long as this object, and its address."""
    double = ctypes.c_double(value)
    return double, ctypes.addressof(double)
