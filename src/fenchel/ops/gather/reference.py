"""Sums of rows in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_A_TIME = 2**24
"""Numbers that are gathered before they are added."""


def gather_sum(
    dense: Tensor, starts: Tensor, ends: Tensor, index: Tensor, values: Tensor
) -> Tensor:
    """out_i = Σ values_k · dense[index_k] over starts_i ≤ k < ends_i.

    Args:
        dense: (m, d).
        starts, ends: (n,), segments that do not overlap, in order.
        index, values: (k,).
    Returns:
        (n, d).
    """
    counts = ends - starts
    out = dense.new_zeros(starts.numel(), dense.shape[1])
    rows = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    places = torch.arange(rows.numel(), device=rows.device) + (starts - first)[rows]
    at_a_time = max(1, _AT_A_TIME // max(1, dense.shape[1]))
    for block, row in zip(places.split(at_a_time), rows.split(at_a_time), strict=True):
        out.index_add_(0, row, values[block, None].to(dense.dtype) * dense[index[block].long()])
    return out
