"""Sums of a few rows of a matrix: the product of a sparse matrix with a dense one."""

from __future__ import annotations

import torch
from torch import Tensor

from .._operator import declare
from .._triton import kernel
from . import reference


def _shape(dense: Tensor, starts: Tensor, *_: Tensor) -> Tensor:
    return dense.new_empty(starts.numel(), dense.shape[1])


gather_sum = declare(
    "gather_sum(Tensor dense, Tensor starts, Tensor ends, Tensor index, Tensor values) -> Tensor",
    fake=_shape,
    reference=reference.gather_sum,
    native=reference.gather_sum,  # one gather and one sum: memory-bound in PyTorch too
    triton=kernel("gather", "gather_sum"),
    rowwise=False,
)


def transpose(columns: Tensor, values: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows of the transpose of a sparse matrix: starts, ends, index and values.

    Args:
        columns: (n, k), the columns of each row's entries; `width` where there is none.
        values: (n, k).
        width: the number of columns.
    """
    ordered, order = columns.flatten().sort(stable=True)
    marks = torch.arange(width + 1, dtype=ordered.dtype, device=ordered.device)
    edges = torch.searchsorted(ordered, marks)
    return edges[:-1], edges[1:], order // columns.shape[1], values.flatten().index_select(0, order)
