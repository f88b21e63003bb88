"""fusedmax on the GPU, a row in the registers of a program, or in tiles where it is long."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launcher import launcher
from .._triton.root import rounded
from .._triton.segments import LONGEST, START, block, launch, padded, places, solve
from .._triton.tiles import at, solve_tiles


class Chain(NamedTuple):
    """The problem of a chain, see `segments`: x_i = max(score, floor) + slope·i, of scores less
    their largest; the costs of a fall and of a rise; and a lower bound of τ."""

    floor: float
    slope: float
    down: float
    up: float
    bound: float


@triton.jit
def chain_forward_kernel(
    p_scores, p_order, p_y,
    floor: tl.float64, slope: tl.float64, down: tl.float64, up: tl.float64, bound: tl.float64,
    rows, d, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    floor, slope = tl.full((), floor, tl.float64), tl.full((), slope, tl.float64)
    down, up = tl.full((), down, tl.float64), tl.full((), up, tl.float64)
    bound = tl.full((), bound, tl.float64)
    solve(p_scores, p_order, p_y, floor, slope, down, up, bound, rows, d, height, width)


@triton.jit
def chain_tiles_kernel(
    p_scores, p_order, p_y, p_x, p_z, p_mark, p_side,
    floor: tl.float64, slope: tl.float64, down: tl.float64, up: tl.float64, bound: tl.float64,
    rows, d, width: tl.constexpr,
):  # fmt: skip
    floor, slope = tl.full((), floor, tl.float64), tl.full((), slope, tl.float64)
    down, up = tl.full((), down, tl.float64), tl.full((), up, tl.float64)
    bound = tl.full((), bound, tl.float64)
    scratch = p_x, p_z, p_mark, p_side
    solve_tiles(p_scores, p_order, p_y, scratch, floor, slope, down, up, bound, rows, d, width)


def launch_chain(scores: Tensor, order: Tensor | None, chain: Chain, longest: int) -> Tensor:
    """Solves the chains of all rows; arguments as for `launch`."""
    return launch((chain_forward_kernel, chain_tiles_kernel), scores, order, chain, longest)


@triton.jit
def join_before(y_a, sum_a, n_a, y_b, sum_b, n_b):
    """Level, sum and number of entries of the latest run; plus START if others came before."""
    joined = (y_a == 0) | (y_b == 0) | ((y_a == y_b) & (n_b < START))
    y = tl.where(y_b == 0, y_a, y_b)
    return y, tl.where(joined, sum_a + sum_b, sum_b), tl.where(joined, n_a + n_b, n_b | START)


@triton.jit
def join_after(y_a, mean_a, several_a, y_b, mean_b, several_b):
    """From the right: level and last mean of the first run, and whether there are several."""
    parted = (y_a != 0) & (y_b != 0) & (y_a != y_b)
    known = (y_a == 0) | parted | ((y_b != 0) & (several_b > 0))
    several = several_a | several_b | parted.to(tl.int32)
    return tl.where(y_b == 0, y_a, y_b), tl.where(known, mean_b, mean_a), several


@triton.jit
def group_jvp_kernel(
    p_y,
    p_v,
    p_order,
    p_out,
    rows,
    d,
    height: tl.constexpr,
    width: tl.constexpr,
):
    """The mean of v over an entry's run of equal nonzero y, less the mean over all nonzero y.

    p_y, p_v, p_order, p_out: (rows, d), y in order and v and out as they stand.
    """
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    o = tl.arange(0, width)[None, :]
    tiles = tl.cdiv(d, width)
    zero = tl.zeros((height, 1), tl.float64)
    none = tl.zeros((height, 1), tl.int32)
    centre, count = zero, none
    for tile in range(tiles):
        i = tile * width + o
        m = (row < rows) & (i < d)
        # (height, width)
        y = tl.load(p_y + row * d + i, m, 0.0).to(tl.float64)
        # (height, width)
        v = tl.load(p_v + places(p_order, row * d, i, m), m & (y > 0), 0.0).to(tl.float64)
        centre += tl.sum(v, 1, keep_dims=True)
        count += tl.sum((y > 0).to(tl.int32), 1, keep_dims=True)
    centre /= tl.maximum(count, 1)
    level, total, n = zero, zero, none
    for tile in range(tiles):
        i = tile * width + o
        m = (row < rows) & (i < d)
        place = places(p_order, row * d, i, m)
        # (height, width)
        y = tl.load(p_y + row * d + i, m, 0.0).to(tl.float64)
        # (height, width)
        v = tl.load(p_v + place, m & (y > 0), 0.0).to(tl.float64)
        y = tl.where(y > 0, y, 0.0)
        run = tl.associative_scan((y, v, (y > 0).to(tl.int32)), 1, join_before)
        b_level, b_total, b_n = join_before(level, total, n, run[0], run[1], run[2])
        mean = b_total / tl.maximum(b_n & (START - 1), 1) - centre
        tl.store(p_out + place, rounded(mean, p_out.dtype.element_ty), m)
        level, total = at(o, width - 1, b_level)[:, None], at(o, width - 1, b_total)[:, None]
        n = at(o, width - 1, b_n)[:, None]
    tl.debug_barrier()
    level, mean, several = zero, level, none
    for tile in range(tiles):
        i = (tiles - 1 - tile) * width + o
        m = (row < rows) & (i < d)
        place = places(p_order, row * d, i, m)
        # (height, width)
        y = tl.load(p_y + row * d + i, m, 0.0).to(tl.float64)
        # (height, width)
        last = tl.load(p_out + place, m, 0.0)
        run = (tl.where(y > 0, y, 0.0), last, tl.zeros_like(o + none))
        run = tl.associative_scan(run, 1, join_after, reverse=True)
        b_level, b_mean, b_several = join_after(level, mean, several, run[0], run[1], run[2])
        # A row of NaN has that derivative.
        out = tl.where(y > 0, b_mean, 0 * y)
        tl.store(p_out + place, rounded(out, p_out.dtype.element_ty), m)
        level, mean = at(o, 0, b_level)[:, None], at(o, 0, b_mean)[:, None]
        several = at(o, 0, b_several)[:, None]


def fusedmax(scores: Tensor, lam: float, longest: int = LONGEST) -> Tensor:
    """As the reference does it; rows longer than `longest`, a power of two, go by tiles of that.

    Args:
        scores: (..., d).
        lam: λ ≥ 0.
        longest: entries that a program holds.

    Returns:
        (..., d), bitwise equal within a group. O(d) work and O(log d) steps a round; few rounds.
    """
    # |z − x| ≤ 2λ, so that max z ≥ −2λ, τ ≥ max z − 1, and the support has x > τ − 2λ.
    chain = Chain(floor=-1 - 4 * lam, slope=0.0, down=lam, up=lam, bound=-1 - 2 * lam)
    y = launch_chain(padded(scores), None, chain, longest)
    return y[..., : scores.shape[-1]].contiguous()


def group_jvp(y: Tensor, v: Tensor, order: Tensor | None, longest: int = LONGEST) -> Tensor:
    """(Mean of v over the entry's run of equal y) − (mean of v over y > 0) where y > 0, else 0.

    Args:
        y: (..., d), nonnegative.
        v: (..., d).
        order: (..., d), where in v the entries of y stand, or none: where they do in y.
        longest: entries that a program holds.

    Returns:
        (..., d), in the order of v.
    """
    y, v = y.contiguous(), v.to(y.dtype).contiguous()
    order = None if order is None else order.contiguous()
    out = torch.empty_like(y)
    if out.numel() == 0:
        return out
    d = y.shape[-1]
    rows = y.numel() // d
    height, width, warps = block(min(d, longest))
    grid = (triton.cdiv(rows, height),)
    run = launcher(group_jvp_kernel, height=height, width=width, num_warps=warps)
    run(grid, y, v, order, out, rows, d)
    return out


def fusedmax_jvp(y: Tensor, v: Tensor, longest: int = LONGEST) -> Tensor:
    """The Jacobian of fusedmax at its value y, times v.

    Args:
        y: (..., d).
        v: (..., d).
        longest: entries that a program holds.

    Returns:
        (..., d). O(d) work and O(log d) steps.
    """
    return group_jvp(y, v, None, longest)
