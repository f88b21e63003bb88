"""Triton's interpreter, more like a GPU and faster.

It combines entries one by one; here by halves. Its dot products depend on the shape of a block;
here they do not. It looks through its language at every call of a function; here once per module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest


def speed_up(patch: pytest.MonkeyPatch) -> None:
    """The interpreter with all that this file changes of it."""
    from triton.runtime import interpreter

    patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce_by_halves)
    patch.setattr(interpreter.ScanOps, "generic_scan", scan_by_doubling)
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_rounded_once)
    patch.setattr(interpreter, "_patch_lang", _once_per_module(interpreter._patch_lang))
    patch.setattr(interpreter, "_get_np_dtype", _of_scalars(interpreter._get_np_dtype))


def _of_scalars(numpy_type: Callable[[Any], np.dtype]) -> Callable[[Any], np.dtype]:
    """The same function of types, with a memory for those of numbers."""
    known = cache(numpy_type)

    def remembered(kind: Any) -> np.dtype:
        return numpy_type(kind.scalar) if kind.scalar.is_ptr() else known(kind.scalar)

    return remembered


class Kept:
    """What was changed in the language, which stays."""

    def restore(self) -> None: ...


@cache
def _once_per_module(patch_language: Callable[[Any], Any]) -> Callable[[Any], Kept]:
    """Gives the language that a kernel's module imports to the interpreter, and leaves it there."""
    known: set[str] = set()

    def patch_once(fn: Any) -> Kept:
        if fn.__module__ not in known:
            known.add(fn.__module__)
            patch_language(fn)
        return Kept()

    return patch_once


def dot_rounded_once(self: Any, a: Any, b: Any, start: Any, *_: Any) -> Any:
    """start + a b. On a GPU a dot product is the same in every block that has it; that of a CPU's
    BLAS depends on the shape, and a block and its transpose differ in the last bit."""
    total = np.matmul(a.data, b.data, dtype=np.float64) + start.data
    return type(start)(total.astype(start.data.dtype), start.dtype.scalar)


def _combine(self: Any, left: list, right: list, kinds: list) -> list:
    blocks = zip(left + right, kinds + kinds, strict=True)
    both = self.combine_fn.fn(*(self.to_tensor(*block) for block in blocks))
    return [out.handle.data for out in (both if isinstance(both, tuple) else (both,))]


def reduce_by_halves(self: Any, blocks: Any) -> list[Any]:
    """The two halves of the axis combined, until one entry is left."""
    data, kinds = [block.handle.data for block in blocks], [block.dtype for block in blocks]
    while data[0].shape[self.axis] > 1:
        halves = [np.split(values, 2, self.axis) for values in data]
        out = _combine(self, [h[0] for h in halves], [h[1] for h in halves], kinds)
        data = [new.astype(old.dtype) for new, old in zip(out, data, strict=True)]
    if not self.keep_dims:
        data = [values.squeeze(self.axis) for values in data]
    return [self.to_tensor(*block) for block in zip(data, kinds, strict=True)]


def scan_by_doubling(self: Any, blocks: Any) -> list[Any]:
    """A scan in ⌈log₂ d⌉ vector steps, in another order than from left to right."""
    data, kinds = [block.handle.data for block in blocks], [block.dtype for block in blocks]
    d = data[0].shape[self.axis]
    shape = [d if k == self.axis else 1 for k in range(data[0].ndim)]
    place, reach = np.arange(d).reshape(shape), 1
    while reach < d:
        out = _combine(self, [np.roll(values, reach, self.axis) for values in data], data, kinds)
        data = [
            np.where(place < reach, old, new).astype(old.dtype)
            for old, new in zip(data, out, strict=True)
        ]
        reach *= 2
    return [self.to_tensor(*block) for block in zip(data, kinds, strict=True)]
