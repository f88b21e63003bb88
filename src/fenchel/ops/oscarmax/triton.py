"""oscarmax on the GPU: rows are sorted, then solved in registers, or in tiles where long.

All pairs of entries of a short row are compared at once: that sorts it, or finds its groups, in the
kernel itself.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launcher import launcher
from .._triton.root import rounded
from .._triton.segments import (
    INF,
    LONGEST,
    padded,
    project,
    regress,
    relative,
)
from ..fusedmax.triton import Chain, group_jvp, launch_chain

SHORT = 64  # entries of a row all pairs of which are compared


def chain_of(lam: float, d: int) -> Chain:
    """The regression of x_i = score + λ i, in decreasing order from i = 0.

    z_0 ≥ x_0 = 0 and τ ≥ z_0 − 1; and z_i ≤ max over j ≥ i of x_j ≤ score_i + λ d.
    """
    return Chain(floor=-1 - lam * d, slope=lam, down=0.0, up=math.inf, bound=-1.0)


@triton.jit
def short_forward_kernel(
    p_scores, p_y,
    floor: tl.float64, slope: tl.float64, down: tl.float64, up: tl.float64, bound: tl.float64,
    d, width: tl.constexpr,
):  # fmt: skip
    """y of one row; p_scores, p_y: (rows, d)."""
    floor, slope = tl.full((), floor, tl.float64), tl.full((), slope, tl.float64)
    down, up = tl.full((), down, tl.float64), tl.full((), up, tl.float64)
    row = tl.program_id(0).to(tl.int64) * d
    i = tl.arange(0, width)[:, None]
    j = tl.arange(0, width)[None, :]
    # (width, 1) and (1, width)
    x_i = tl.load(p_scores + row + i, i < d, -INF).to(tl.float64)
    x_j = tl.load(p_scores + row + j, j < d, -INF).to(tl.float64)
    has_nan = tl.max((x_j != x_j).to(tl.int32), 1, keep_dims=True)
    top = tl.max(tl.where(x_j == x_j, x_j, -INF), 1, keep_dims=True)
    before = (x_j > x_i) | ((x_j == x_i) & (j < i))
    rank = tl.sum(before.to(tl.int32), 1, keep_dims=True)
    x, weight = relative(x_i, top, has_nan)
    kept = tl.sum(weight, 0, keep_dims=True)
    # What is deleted ranks last: entry k of the ordered row is kept if it is one of the first.
    x = tl.sum(tl.where(rank == j, x, 0.0), 0, keep_dims=True)
    weight = (j < kept).to(tl.int32)
    x = tl.where(weight > 0, tl.maximum(x, floor) + slope * j, 0.0)
    z, tau = regress(x, weight, down, up, bound + tl.zeros_like(top))
    y = tl.sum(tl.where(rank == j, project(z, weight, tau), 0.0), 1, keep_dims=True)
    y = tl.where(has_nan > 0, float("nan"), y)
    tl.store(p_y + row + i, rounded(y, p_y.dtype.element_ty), i < d)


@triton.jit
def short_jvp_kernel(p_y, p_v, p_out, d, width: tl.constexpr):
    """The mean of v over an entry's group, less that over all groups; p_…: (rows, d)."""
    row = tl.program_id(0).to(tl.int64) * d
    i = tl.arange(0, width)[:, None]
    j = tl.arange(0, width)[None, :]
    # (width, 1) and (1, width)
    y_i = tl.load(p_y + row + i, i < d, 0.0).to(tl.float64)
    y_j = tl.load(p_y + row + j, j < d, 0.0).to(tl.float64)
    v = tl.load(p_v + row + j, (j < d) & (y_j > 0), 0.0).to(tl.float64)
    count = tl.sum((y_j > 0).to(tl.int32), 1, keep_dims=True)
    centre = tl.sum(v, 1, keep_dims=True) / tl.maximum(count, 1)
    same = (y_i == y_j) & (y_j > 0)
    count = tl.sum(same.to(tl.int32), 1, keep_dims=True)
    mean = tl.sum(tl.where(same, v, 0.0), 1, keep_dims=True) / tl.maximum(count, 1)
    # A row of NaN has that derivative.
    out = tl.where(y_i > 0, mean - centre, 0 * y_i)
    tl.store(p_out + row + i, rounded(out, p_out.dtype.element_ty), i < d)


def launch_short(kernel: Any, *tensors: Tensor, numbers: tuple[float, ...] = ()) -> Tensor:
    """Runs a kernel on short rows (..., d), one a program, into a tensor like the first."""
    tensors = tuple(each.contiguous() for each in tensors)
    out = torch.empty_like(tensors[0])
    d = out.shape[-1]
    if out.numel():
        width = max(16, triton.next_power_of_2(d))
        grid = (out.numel() // d,)
        run = launcher(kernel, width=width, num_warps=max(1, width // 32))
        run(grid, *tensors, out, *numbers, d)
    return out


def oscarmax(scores: Tensor, lam: float, longest: int = LONGEST) -> Tensor:
    """As the reference does it; rows longer than `longest`, a power of two, go by tiles of that.

    Args:
        scores: (..., d).
        lam: λ ≥ 0.
        longest: entries that a program holds.

    Returns:
        (..., d), bitwise equal within a group. Sorting; O(d) work and O(log d) steps a round.
    """
    d = scores.shape[-1]
    if d <= min(SHORT, longest):
        return launch_short(short_forward_kernel, scores, numbers=chain_of(lam, d))
    ordered, order = padded(scores).sort(-1, descending=True)
    y = launch_chain(ordered, order, chain_of(lam, ordered.shape[-1]), longest)
    return y[..., :d].contiguous()


def oscarmax_jvp(y: Tensor, v: Tensor, longest: int = LONGEST) -> Tensor:
    """The Jacobian of oscarmax at its value y, times v.

    Args:
        y: (..., d).
        v: (..., d).
        longest: entries that a program holds.

    Returns:
        (..., d). Sorting; O(d) work and O(log d) steps.
    """
    if y.shape[-1] <= min(SHORT, longest):
        return launch_short(short_jvp_kernel, y, v.to(y.dtype))
    ordered, order = y.sort(-1, descending=True)
    return group_jvp(ordered, v, order, longest)
