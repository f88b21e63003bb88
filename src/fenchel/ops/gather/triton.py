"""Sums of rows on a GPU: one pass over each segment, in order, so that answers repeat."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launcher import launcher


@triton.jit
def gather_sum_kernel(
    p_dense, p_start, p_end, p_index, p_value, p_out, d, stride,
    TYPE: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o_column = tl.program_id(1) * D + tl.arange(0, D)
    m_column = o_column < d
    start, end = tl.load(p_start + row), tl.load(p_end + row)
    b_sum = tl.zeros([D], TYPE)
    for first in range(start, end, G):
        o = first + tl.arange(0, G)
        m_entry = o < end
        # (G,)
        b_index = tl.load(p_index + o, mask=m_entry, other=0).to(tl.int64)
        b_value = tl.load(p_value + o, mask=m_entry, other=0.0).to(TYPE)
        # (G, D)
        b_rows = tl.load(
            p_dense + b_index[:, None] * stride + o_column[None, :],
            mask=m_entry[:, None] & m_column[None, :],
            other=0.0,
        ).to(TYPE)
        b_sum += tl.sum(b_value[:, None] * b_rows, 0)
    tl.store(p_out + row * d + o_column, b_sum.to(p_out.dtype.element_ty), mask=m_column)


def gather_sum(
    dense: Tensor, starts: Tensor, ends: Tensor, index: Tensor, values: Tensor
) -> Tensor:
    dense = dense if dense.stride(1) == 1 else dense.contiguous()
    n, d = starts.numel(), dense.shape[1]
    out = dense.new_empty(n, d)
    width = min(triton.next_power_of_2(d), 1024)
    if n:
        wide = tl.float64 if dense.dtype == torch.float64 else tl.float32
        run = launcher(gather_sum_kernel, TYPE=wide, G=8, D=width, num_warps=4)
        grid = (n, triton.cdiv(d, width))
        run(grid, dense, starts, ends, index, values, out, d, dense.stride(0))
    return out
