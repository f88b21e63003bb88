"""What the kernels of attention keep for the backward pass, and where: one tensor of float32."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 16
"""Queries that share a list of candidates."""
BLOCK = 128
"""Queries that are dense together, or not."""
SHORTEST = 512
"""Queries and keys from which on candidates are worth their lists."""
CAP = 1024
"""Candidates of a group, at most."""
WIDEST = 64
"""Entries of a vector up to which float32 goes by candidates: wider tiles of it do not fit."""


class Kept(NamedTuple):
    """The parts, or their sizes in words of four bytes."""

    rows: int | Tensor
    """Three numbers of each query."""
    means: int | Tensor
    """Σ w v / Σ w less the output of each query, in the type of the values."""
    candidates: int | Tensor
    counts: int | Tensor
    """Candidates of each group of queries."""
    dense: int | Tensor
    """Which blocks of queries are dense."""
    whole: int | Tensor
    """Which groups of heads have dense blocks."""


def uses_lists(queries: int, keys: int) -> bool:
    """Whether attention goes by candidates."""
    return queries >= SHORTEST and keys >= SHORTEST


def kept_sizes(query: Tensor, key: Tensor, value: Tensor, cap: int) -> Kept:
    """The sizes of the parts; all but the first are empty with a cap of 0."""
    batch, heads, queries = query.shape[:-1]
    rows = batch * heads * queries
    if cap == 0:
        return Kept(3 * rows, *(0,) * 5)
    groups = batch * heads * -(-queries // GROUP)
    blocks = batch * heads * -(-queries // BLOCK)
    means = -(-rows * value.shape[-1] * value.dtype.itemsize // 4)
    lists = (groups * cap, groups, blocks, batch * key.shape[1])
    return Kept(3 * rows, means, *lists)


def _aligned(sizes: Kept) -> list[int]:
    return [-(-size // 4) * 4 for size in sizes]  # type: ignore[operator]


def kept_size(query: Tensor, key: Tensor, value: Tensor, cap: int) -> int:
    """How many words all parts take, each from a multiple of 16 bytes on."""
    return sum(_aligned(kept_sizes(query, key, value, cap)))


def kept_parts(state: Tensor, query: Tensor, key: Tensor, value: Tensor, cap: int) -> Kept:
    """The parts of the tensor: numbers, values, and lists of int32."""
    sizes = kept_sizes(query, key, value, cap)
    starts = accumulate(_aligned(sizes), initial=0)
    parts = [state[i : i + size] for i, size in zip(starts, sizes, strict=False)]  # type: ignore[operator]
    rows, means, *lists = parts
    return Kept(rows, means.view(value.dtype), *(x.view(torch.int32) for x in lists))


def cap_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> int:
    """The cap of the lists, 0 where there are none: in short sequences, in float32 with wide
    vectors, and with a mask."""
    if mask is not None or query.shape[:2].numel() == 0:
        return 0
    fits = query.dtype.itemsize < 4 or max(query.shape[-1], value.shape[-1]) <= WIDEST
    return CAP if fits and uses_lists(query.shape[-2], key.shape[-2]) else 0
