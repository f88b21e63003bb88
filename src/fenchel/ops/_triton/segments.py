"""Level sets of chains on the GPU, for the total-variation prox and the isotonic regression.

Both are argmin over z of ½|z − x|² + Σ φ(z_{i+1} − z_i), φ(s) = up·s for s > 0 and −down·s for
s < 0: down = up = λ for total variation, and down = 0, up = ∞ for a non-increasing z. The set
{z > t} is the E of the largest Σ_E (x_i − t) less its borders, by a clamped sum along the chain. A
segment is cut where z crosses t; at a cut φ is linear, and the segments stand alone. A segment that
is not cut at its own mean is constant there.

Of z only [z − τ]₊ is wanted, τ such that it sums to one. For a union E of segments Σ_E z = Σ_E x,
so that (Σ_E x − 1) / |E| is a lower bound of τ. A segment whose mean is lower is cut there.

Entries that are deleted or pad a block weigh nothing: every step passes through them unchanged.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launcher import launcher
from .root import rounded

START = tl.constexpr(1 << 30)  # added to the number of entries where a segment starts
INF = tl.constexpr(float("inf"))

LONGEST = 4096  # entries that the registers of one program hold
SCRATCH = 1 << 24  # entries of longer rows that are worked on at a time,
PROGRAMS = 128  # or this many rows, to have the whole device at work


@triton.jit
def add_within(sum_a, n_a, sum_b, n_b):
    """Sums and numbers of entries since the latest start."""
    begins = n_b >= START
    return tl.where(begins, sum_b, sum_a + sum_b), tl.where(begins, n_b, n_a + n_b)


@triton.jit
def latest(a, b):
    """The latest that is a number."""
    return tl.where(b == b, b, a)


@triton.jit
def compose(shift_a, low_a, high_a, shift_b, low_b, high_b):
    """The step m ↦ clamp(m + shift, low, high) of a, then that of b, is such a step."""
    low = tl.minimum(tl.maximum(low_a + shift_b, low_b), high_b)
    high = tl.minimum(tl.maximum(high_a + shift_b, low_b), high_b)
    return shift_a + shift_b, low, high


@triton.jit
def follow(a, b):
    """The entry's side, or its neighbour's where it has none, plus four times its neighbour's."""
    side_a, side_b, next_b = a & 3, b & 3, b >> 2
    return tl.where(side_b > 0, side_b, side_a) + 4 * tl.where(next_b > 0, next_b, side_a)


@triton.jit
def steps(x, weight, starts, t, down, up):
    """The gain of having entry i in {z > t}, m_i = clamp(m_{i−1}, −up, down) + (x_i − t)."""
    a = x - weight * t
    low = tl.where(starts > 0, a, tl.where(weight > 0, a - up, -INF))
    high = tl.where(starts > 0, a, tl.where(weight > 0, a + down, INF))
    return a, low, high


@triton.jit
def sides(gain, ends, down, up):
    """2 is in {z > t}, 1 is not, whatever follows; 0 does as its successor does."""
    within = tl.where(gain > down, 2, tl.where(gain <= -up, 1, 0))
    return tl.where(ends > 0, tl.where(gain > 0, 2, 1), within)


@triton.jit
def cuts(side, before, after, starts, ends):
    """How far an entry is above its neighbours, 1 or −1 where a new cut parts them, else 0."""
    left = tl.where((starts > 0) | (before == 0), 0, side - before)
    return left, tl.where((ends > 0) | (after == 0), 0, side - after)


@triton.jit
def relative(x, top, has_nan):
    """x less top, its largest, and what is kept: all that is finite, or what is infinite alone."""
    infinite = (top == INF).to(tl.int32)
    kept = (x > -INF) & (has_nan == 0) & ((infinite == 0) | (x == INF))
    top = tl.where(tl.abs(top) < INF, top, 0.0)
    return tl.where(kept & (x < INF), x, top) - top, kept.to(tl.int32)


@triton.jit
def places(p_order, row, o, m):
    """Where in memory the entries o of an ordered row stand; p_order: (rows, d), or none."""
    place = row + o
    if p_order is not None:
        # (height, width)
        place = row + tl.load(p_order + place, m, 0)
    return place


@triton.jit
def raised(tau, total, count):
    """The larger of τ and (Σ_E z − 1) / |E|."""
    bound = (total - 1.0) / tl.maximum(count, 1)
    return tl.where((count > 0) & (bound > tau), bound, tau)


@triton.jit
def regress(x, weight, down, up, tau):
    """z where it is above τ, at most τ elsewhere; and a lower bound of τ, from another one, tau.

    x: (r, d); weight: (r, d), 0 or 1; up: down or ∞; tau: (r, 1).
    """
    width: tl.constexpr = x.shape[1]
    o = tl.arange(0, width)[None, :]
    starts = tl.zeros_like(weight) + (o == 0)
    ends = tl.zeros_like(weight) + (o == width - 1)
    z = x
    cutting = tl.full((), 1, tl.int32)
    while cutting > 0:
        total, n = tl.associative_scan((x, weight + START * starts), 1, add_within)
        mean = total / tl.maximum(n & (START - 1), 1)
        z = tl.associative_scan(tl.where(ends > 0, mean, float("nan")), 1, latest, reverse=True)
        above = (weight > 0) & (z > tau)
        count = tl.sum(above.to(tl.int32), 1, keep_dims=True)
        tau = raised(tau, tl.sum(tl.where(above, z, 0.0), 1, keep_dims=True), count)
        shift, low, high = steps(x, weight, starts, tl.maximum(z, tau), down, up)
        shift, gain, high = tl.associative_scan((shift, low, high), 1, compose)
        code = tl.associative_scan(sides(gain, ends, down, up), 1, follow, reverse=True)
        side, after = code & 3, code >> 2
        before = tl.associative_scan(side, 1, follow) >> 2
        left, right = cuts(side, before, after, starts, ends)
        x -= down * (left + right)
        starts |= (left != 0).to(tl.int32)
        ends |= (right != 0).to(tl.int32)
        cutting = tl.max(tl.max((right != 0).to(tl.int32), 1), 0)
    return z, tau


@triton.jit
def project(z, weight, tau):
    """[z − τ]₊ by Newton's method from tau, a lower bound.

    z: (r, d); weight: (r, d); tau: (r, 1).
    """
    peak = tl.max(tl.where(weight > 0, z, -INF), 1, keep_dims=True)
    u = tl.where(weight > 0, z - peak, -INF)
    tau = tl.where(tau < peak, tl.maximum(tau - peak, -1.0), -1.0)
    least = tl.zeros_like(tau).to(tl.int32) + START
    moving = tl.full((), 1, tl.int32)
    while moving > 0:
        above = u > tau
        count = tl.sum(above.to(tl.int32), 1, keep_dims=True)
        total = tl.sum(tl.where(above, u, 0.0), 1, keep_dims=True)
        fewer = count < least
        tau = tl.where(fewer, (total - 1.0) / tl.maximum(count, 1), tau)
        least = tl.minimum(count, least)
        moving = tl.max(tl.max(fewer.to(tl.int32), 1), 0)
    y = tl.where(u > tau, u - tau, 0.0)
    # What τ rounded.
    count = tl.sum((y > 0).to(tl.int32), 1, keep_dims=True)
    excess = (tl.sum(y, 1, keep_dims=True) - 1.0) / tl.maximum(count, 1)
    return tl.where((y > 0) & (y > excess), y - excess, 0.0)


@triton.jit
def solve(p_scores, p_order, p_y, floor, slope, down, up, bound, rows, d, height, width):
    """y of the rows of one program, in registers, from x_i = max(score, floor) + slope·i.

    p_scores, p_order, p_y: (rows, d); floor, and bound on τ: of scores less the largest.
    """
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    o = tl.arange(0, width)[None, :]
    i = row * d + o
    m = (row < rows) & (o < d)
    # (height, width)
    x = tl.load(p_scores + i, m, -INF).to(tl.float64)
    has_nan = tl.max((x != x).to(tl.int32), 1, keep_dims=True)
    top = tl.max(tl.where(x == x, x, -INF), 1, keep_dims=True)
    x, weight = relative(x, top, has_nan)
    x = tl.where(weight > 0, tl.maximum(x, floor) + slope * o, 0.0)
    z, tau = regress(x, weight, down, up, bound + tl.zeros_like(top))
    y = tl.where(has_nan > 0, float("nan"), project(z, weight, tau))
    tl.store(p_y + places(p_order, row * d, o, m), rounded(y, p_y.dtype.element_ty), m)


def padded(scores: Tensor) -> Tensor:
    """With deleted entries up to a multiple of 16: a thread then reads and scans four at once. On
    short rows that would not pay for the copies."""
    rest = -scores.shape[-1] % 16 if scores.shape[-1] > 256 else 0
    return torch.nn.functional.pad(scores, (0, rest), value=-torch.inf) if rest else scores


def block(d: int) -> tuple[int, int, int]:
    """Height and width of a block of rows of length d, and its warps: four entries a thread."""
    width = max(16, triton.next_power_of_2(d))
    height = max(1, 128 // width)
    return height, width, min(16, height * width // 128)


def launch(
    kernels: tuple[Any, Any],
    scores: Tensor,
    order: Tensor | None,
    numbers: tuple[float, ...],
    longest: int,
) -> Tensor:
    """Runs the first of the kernels, in registers, or the second, in tiles, on every row.

    Args:
        kernels: with the arguments of `solve` and of `solve_tiles`.
        scores: (..., d).
        order: (..., d), where the entries stand, or none: as they come.
        numbers: floor, slope, down, up and bound.
        longest: a power of two; longer rows go by tiles of that length.

    Returns:
        (..., d). Nothing waits for the device.
    """
    scores = scores.contiguous()
    order = None if order is None else order.contiguous()
    y = torch.empty_like(scores)
    if y.numel() == 0:
        return y
    d = y.shape[-1]
    rows = y.numel() // d
    height, width, warps = block(min(d, longest))
    in_registers, in_tiles = kernels
    if d <= longest:
        grid = (triton.cdiv(rows, height),)
        run = launcher(in_registers, height=height, width=width, num_warps=warps)
        run(grid, scores, order, y, *numbers, rows, d)
    else:
        shape = (2, min(rows, max(PROGRAMS, SCRATCH // d)), d)
        x, z = torch.empty(shape, dtype=torch.float64, device=y.device)
        mark, side = torch.empty(shape, dtype=torch.int8, device=y.device)
        run = launcher(in_tiles, width=width, num_warps=warps)
        run(shape[1:2], scores, order, y, x, z, mark, side, *numbers, rows, d)
    return y
