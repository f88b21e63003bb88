"""Finds and calls the C++ library: one per instruction set, behind a C ABI, through ctypes."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

_FOLDER = Path(os.environ.get("FENCHEL_LIBRARY_DIR") or Path(__file__).parent)
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_KINDS = {torch.float32: "f32", torch.float64: "f64"}
_C_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f64": ctypes.c_double}
LONGEST_ROW = 2**31 - 1
"""Entries are numbered with 32 bits inside the library."""


def setting(name: str, *values: str) -> str:
    """One of the values from the environment, empty if it is not set."""
    value = os.environ.get(name, "")
    if value and value not in values:
        *others, last = values
        raise ValueError(f"`{name}` must be {', '.join(others)} or {last}, got {value!r}.")
    return value


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library for this CPU, or the one asked for, and a sentence about what was found."""
    if setting("FENCHEL_KERNELS", "fast", "reference") == "reference":
        return None, "switched off by FENCHEL_KERNELS=reference; unset FENCHEL_KERNELS to use it"

    def open_library(isa: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(_FOLDER / f"fenchel_native_{isa}{_SUFFIX}"))

    asked = setting("FENCHEL_ISA", "baseline", "v3", "v4")
    try:
        level = 0 if asked else open_library("baseline").fenchel_x86_level()
        isa = asked or {3: "v3", 4: "v4"}.get(level, "baseline")
        return open_library(isa), f"loaded, {isa} instruction set"
    except OSError as error:
        found = f"not found for FENCHEL_ISA={asked}" if asked else "not found"
        remedy = "unset FENCHEL_ISA, or install" if asked else "install"
        return None, (
            f"{found}, the slower references are used; {remedy} a C++17 compiler and CMake, then "
            f"reinstall fenchel ({error})"
        )


LIBRARY, STATUS = _load()
_PYTHON = (ctypes.c_void_p * 3)(
    *(
        ctypes.cast(function, ctypes.c_void_p).value
        for function in (
            ctypes.pythonapi.PyEval_SaveThread,
            ctypes.pythonapi.PyEval_RestoreThread,
            ctypes.pythonapi.PyErr_CheckSignals,
        )
    )
)
"""The functions by which the library lets Python run the handlers of signals."""
_OUT_OF_MEMORY = "the native library could not allocate its working memory."


class NativeFunction:
    """One function of the library, with the names and types of its arguments.

    A function whose arguments mention T exists for float32 and float64, and its first argument says
    which is meant. A status that is not zero is a MemoryError.

    Args:
        name: its name in the library, without `fenchel_` and the type.
        arguments: "scores: T*, lam: f64, rows: i64, …, threads: i32", as in C++.
    Raises:
        ImportError: if the library has no such function, or another one of that name.
    """

    def __init__(self, name: str, arguments: str) -> None:
        pairs = [argument.split(": ") for argument in arguments.split(", ")]
        names, types = [name for name, _ in pairs], [kind for _, kind in pairs]
        self._takes_threads = names[-1] == "threads"
        self._per_row = [f"{n}_step" in names for n in names if not n.endswith("_step")]
        self._by_number = bool(re.fullmatch(r"(\w+: \w+\*, )+\w+_step: i64, rows: .*", arguments))
        self._types = " ".join(types)
        self._only: Any = None
        self._by_dtype: dict[torch.dtype, Any] = {}
        if LIBRARY is None:
            self._only = _refuse
        elif "T*" not in types:
            self._only = _function(name, arguments, types)
        else:
            for dtype, kind in _KINDS.items():
                typed = arguments.replace("T*", f"{kind}*")
                self._by_dtype[dtype] = _function(f"{name}_{kind}", typed, types)

    @property
    def entry(self) -> tuple[str, int, int]:
        """The types of its arguments, and its addresses for float32 and float64."""
        f32, f64 = (ctypes.cast(self._by_dtype[kind], ctypes.c_void_p).value for kind in _KINDS)
        assert f32 is not None
        assert f64 is not None
        return self._types, f32, f64

    def __call__(self, *arguments: Any) -> None:
        """Runs the function on contiguous tensors, numbers and None; the thread count is added."""
        words = [_address(a) if isinstance(a, Tensor) else a for a in arguments]
        self._run(arguments[0], words)

    def write(self, arguments: tuple, *results: Tensor | None) -> None:
        """Runs a function on contiguous rows (..., d) into results, some maybe None.

        Its C arguments are inputs and parameters, the first of them the rows, then `rows`, `d` and
        the results. A parameter with a step is a number, or a tensor (..., 1) of one per row.
        """
        rows = arguments[0]
        d = rows.shape[-1]
        *inputs, last = arguments
        if self._by_number and type(last) is float:  # the common case, at the least cost
            words = [None if x is None else x.data_ptr() for x in (*inputs, *results)]
            if 0 in words:
                _check_memory(arguments)
            words[len(inputs) : len(inputs)] = _number(last), 0, rows.numel() // d, d
            words.append(torch.get_num_threads())
            if self._by_dtype[rows.dtype](*words):
                raise MemoryError(_OUT_OF_MEMORY)
            return
        words = []
        owners = []
        for value, per_row in zip(arguments, self._per_row, strict=False):
            if not per_row:
                words.append(_address(value) if isinstance(value, Tensor) else value)
            elif isinstance(value, Tensor):
                value = _one_per_row(value, rows)
                owners.append(value)
                words += (_address(value), 1)
            else:
                words += (_number(value), 0)
        words += (rows.numel() // d, d)
        for result in results:
            words.append(None if result is None else result.data_ptr())
        words.append(torch.get_num_threads())
        if self._by_dtype[rows.dtype](*words):
            raise MemoryError(_OUT_OF_MEMORY)

    def rows(self, *arguments: Any) -> Tensor:
        """The result of `write` in a new tensor like the rows."""
        out = torch.empty_like(arguments[0])
        self.write(arguments, out)
        return out

    def _run(self, first: Any, words: list) -> None:
        if self._takes_threads:
            words.append(torch.get_num_threads())
        if (self._only or self._by_dtype[first.dtype])(*words):
            raise MemoryError(_OUT_OF_MEMORY)


class InterruptibleFunction(NativeFunction):
    """A function during which Python runs the handlers of signals, if it is called in the main
    thread. An exception of theirs ends it. Its last arguments are `python` and `threads`.
    """

    def __init__(self, name: str, arguments: str) -> None:
        super().__init__(name, arguments)
        if LIBRARY is None:
            return
        self._in_main = ctypes.PyDLL(LIBRARY._name, handle=LIBRARY._handle)[f"fenchel_{name}"]
        self._in_main.argtypes = self._only.argtypes

    def _run(self, first: Any, words: list) -> None:
        in_main = LIBRARY is not None and threading.get_ident() == threading.main_thread().ident
        words += (_PYTHON if in_main else None, torch.get_num_threads())
        if (self._in_main if in_main else self._only)(*words):
            raise MemoryError(_OUT_OF_MEMORY)


def _address(tensor: Tensor) -> int:
    address = tensor.data_ptr()
    if not address:
        _check_memory((tensor,))
    return address


def _check_memory(values: tuple) -> None:
    """Raises if a tensor with entries has no memory."""
    for value in values:
        if isinstance(value, Tensor) and value.numel() and not value.data_ptr():
            raise RuntimeError(
                f"a tensor of shape {tuple(value.shape)} has no memory: its storage was freed, or "
                "is not allocated yet."
            )


def _one_per_row(value: Tensor, rows: Tensor) -> Tensor:
    """A parameter as float64, one per row (..., 1), contiguous."""
    shape = (*rows.shape[:-1], 1)
    if value.shape != shape:
        value = value.broadcast_to(shape)
    return value.to(torch.float64).contiguous()


def _function(name: str, arguments: str, types: list[str]) -> Any:
    """The function of the library of that name, if its arguments are these."""
    try:
        function = LIBRARY[f"fenchel_{name}"]  # type: ignore[index]
        signature = LIBRARY[f"fenchel_{name}_signature"]  # type: ignore[index]
    except AttributeError:
        _refuse_library(f"has no `{name}`")
    signature.restype = ctypes.c_char_p
    found = signature().decode()
    if found != arguments:
        _refuse_library(f"has `{name}({found})` instead of `{name}({arguments})`")
    function.argtypes = [_C_TYPES.get(kind, ctypes.c_void_p) for kind in types]
    return function


def _refuse_library(what: str) -> NoReturn:
    raise ImportError(
        f"the native library {what}: it is older than the package; build it again with "
        "`pip install .`, or set FENCHEL_KERNELS=reference."
    ) from None


def _refuse(*_: Any) -> NoReturn:
    raise RuntimeError(f"the native library is {STATUS}.")


@lru_cache(maxsize=64)
def _number(value: float) -> Any:
    """A pointer to a number, which keeps it in memory."""
    return ctypes.byref(ctypes.c_double(value))
