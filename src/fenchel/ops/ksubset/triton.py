"""k-subset mappings on a GPU: y = min(1, [1 + ε(x − t)]₊^(1/ε)), ε = α − 1, t such that Σy = k."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.jvp import jvp
from .._triton.launch import row_values, rows_of
from .._triton.launcher import launcher
from .._triton.root import ENTMAX, rounded
from . import reference


@triton.jit
def _capped(b_below, epsilon, LINEAR: tl.constexpr):
    """The entry whose score lies `below` the threshold at which it would reach one."""
    b_below = tl.maximum(b_below, 0.0)
    b_u = 1 - epsilon * b_below
    if LINEAR:
        return tl.maximum(b_u, 0.0)
    else:
        b_inside = tl.where(b_u > 0, b_u, 1.0)
        over = 1 / tl.where(epsilon == 0, 1.0, epsilon)
        b_log = tl.where(epsilon == 0, -b_below, tl.log(b_inside) * over)
        return tl.where(b_u > 0, tl.exp(b_log), 0.0)


@triton.jit
def _total(p_row, d, base, t, epsilon, LINEAR: tl.constexpr, M: tl.constexpr):
    """Σy over the finite scores at the threshold base + t, and what it falls by as t rises."""
    b_total = tl.zeros([M], tl.float64)
    b_slope = tl.zeros([M], tl.float64)
    for start in range(0, d, M):
        o = start + tl.arange(0, M)
        # (M,)
        b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
        b_y = _capped(t - (b_x - base), epsilon, LINEAR)
        b_y = tl.where(tl.abs(b_x) < float("inf"), b_y, 0.0)
        m_open = (b_y > 0) & (b_y < 1)
        b_total += b_y
        b_power = tl.exp((1 - epsilon) * tl.log(tl.where(m_open, b_y, 1.0))) if not LINEAR else 1.0
        b_slope += tl.where(m_open, b_power, 0.0)
    return tl.sum(b_total, 0), tl.sum(b_slope, 0)


@triton.jit
def _root(
    p_row, d, base, t, low, high, k, epsilon, tolerance, LINEAR: tl.constexpr, M: tl.constexpr
):
    """t with Σy = k in [low, high]: Newton, and halving where that leaves the bracket."""
    steps, done = 0, False
    while (steps < 200) & (not done):
        total, slope = _total(p_row, d, base, t, epsilon, LINEAR, M)
        low = tl.where(total > k, t, low)
        high = tl.where(total > k, high, t)
        step = (total - k) / tl.where(slope > 0, slope, 1e-300)
        moved = t + step
        done = tl.abs(step) <= tolerance * (1 + tl.abs(t))
        inside = (moved > low) & (moved < high)
        moved = tl.where(done | inside, moved, low + (high - low) / 2)
        done = done | (moved == low) | (moved == high)
        t = moved
        steps += 1
    return t


@triton.jit
def ksubset_forward_kernel(
    p_x, p_y, p_k, k: tl.float64, alpha: tl.float64, tolerance: tl.float64, d, stride,
    PER_ROW: tl.constexpr, LINEAR: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p_row = p_x + row * stride
    epsilon = tl.full([], alpha, tl.float64) - 1
    wanted = tl.load(p_k + row).to(tl.float64) if PER_ROW else tl.full([], k, tl.float64)
    b_top = tl.full([M], -float("inf"), tl.float64)
    b_bottom = tl.full([M], float("inf"), tl.float64)
    b_free = tl.zeros([M], tl.float64)
    b_infinite = tl.zeros([M], tl.float64)
    b_nan = tl.zeros([M], tl.int32)
    for start in range(0, d, M):
        o = start + tl.arange(0, M)
        # (M,)
        b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
        m_free = tl.abs(b_x) < float("inf")
        b_top = tl.maximum(b_top, tl.where(m_free, b_x, -float("inf")))
        b_bottom = tl.minimum(b_bottom, tl.where(m_free, b_x, float("inf")))
        b_free += m_free.to(tl.float64)
        b_infinite += (b_x == float("inf")).to(tl.float64)
        b_nan = tl.maximum(b_nan, (b_x != b_x).to(tl.int32))
    b_nan = tl.where((wanted >= 0) & (wanted <= d), b_nan, 1)
    num_infinite, num_free = tl.sum(b_infinite, 0), tl.sum(b_free, 0)
    remaining = wanted - num_infinite
    solvable = (remaining > 0) & (remaining < num_free) & (tl.max(b_nan, 0) == 0)
    base = tl.full([], 0.0, tl.float64)
    t = tl.full([], 0.0, tl.float64)
    if solvable:
        # At the lowest score all would be one; at `reach` above the highest all are at most k/n.
        share = tl.log(remaining / num_free)
        over = tl.where(epsilon == 0, 1.0, epsilon)
        reach = tl.where(epsilon == 0, -share, (1 - tl.exp(epsilon * share)) / over)
        low, high = tl.min(b_bottom, 0), tl.max(b_top, 0) + reach
        t = _root(p_row, d, base, high, low, high, remaining, epsilon, tolerance, LINEAR, M)
        # Distances from the score nearest to t are exact, where t itself is rounded.
        b_gap = tl.full([M], float("inf"), tl.float64)
        b_near = tl.zeros([M], tl.float64)
        for start in range(0, d, M):
            o = start + tl.arange(0, M)
            # (M,)
            b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
            m_nearer = tl.abs(b_x - t) < b_gap
            b_gap = tl.where(m_nearer, tl.abs(b_x - t), b_gap)
            b_near = tl.where(m_nearer, b_x, b_near)
        gap = tl.min(b_gap, 0)
        base = tl.max(tl.where(b_gap == gap, b_near, -float("inf")), 0)
        low, high = low - base - 1, (tl.max(b_top, 0) - base) + (reach + 1)
        t = _root(p_row, d, base, t - base, low, high, remaining, epsilon, tolerance, LINEAR, M)
    for start in range(0, d, M):
        o = start + tl.arange(0, M)
        # (M,)
        b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
        m_free = tl.abs(b_x) < float("inf")
        b_full = tl.where(remaining > 0, 1.0, 0.0).to(tl.float64)
        b_y = tl.where(solvable, _capped(t - (b_x - base), epsilon, LINEAR), b_full)
        b_y = tl.where(m_free, b_y, 0.0)
        b_y = tl.where(
            b_x == float("inf"), tl.minimum(wanted / tl.maximum(num_infinite, 1.0), 1.0), b_y
        )
        b_y = tl.where(tl.max(b_nan, 0) > 0, float("nan"), b_y)
        tl.store(p_y + row * d + o, rounded(b_y, p_y.dtype.element_ty), mask=o < d)


def ksubset(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    if alpha > 2:
        return reference.in_float64(scores, k, alpha)
    x, d = rows_of(scores), scores.shape[-1]
    y = torch.empty_like(scores, memory_format=torch.contiguous_format)
    values, number = row_values(k, scores.shape)
    width = min(triton.next_power_of_2(d), 4096)
    # To the type of the scores, with a margin for what the powers magnify.
    tolerance = 1e-16 if scores.dtype == torch.float64 else 1e-11
    if x.shape[0]:
        run = launcher(
            ksubset_forward_kernel, PER_ROW=values is not None, LINEAR=alpha == 2, M=width,
            num_warps=min(max(width // 256, 1), 8),
        )  # fmt: skip
        run(
            (x.shape[0],), x, y, values, 0.0 if number is None else number, alpha, tolerance, d,
            x.stride(0),
        )  # fmt: skip
    return y


def ksubset_jvp(y: Tensor, v: Tensor, alpha: float) -> Tensor:
    return jvp(y, v, alpha, ENTMAX, capped=True)  # entries at one stay there
