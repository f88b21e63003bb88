"""Triton's interpreter combines entries one by one; here by halves, as a GPU does, and faster."""

from __future__ import annotations

from typing import Any

import numpy as np


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
