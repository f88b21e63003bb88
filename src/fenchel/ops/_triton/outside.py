"""α-entmax with α outside [1, 2], on a GPU: one row per program, in float64.

Above 2 the unknown is the smallest entry of the support, y_k at the pivot x_k; below 1 it is s − 1.
ops/entmax/steep.hpp and heavy.hpp say why.
"""

import triton
import triton.language as tl

from .root import expm1_over, finite, larger, largest, rounded


@triton.jit
def steep_entries(b_x, pivot, least, power, epsilon):
    """y from the pivot, its entry and that to the power ε = α − 1; all but b_x broadcast."""
    b_above = epsilon * (b_x - pivot)
    b_log = tl.log(tl.where(b_above > 0, power + b_above, 1.0))
    return tl.where(b_above > 0, tl.exp(b_log / epsilon), tl.where(b_above == 0, least, 0.0))


@triton.jit
def heavy_entries(b_x, top, rise, epsilon):
    """(1 + rise − ε(top − x))^(1/ε), ε = α − 1 < 0; all but b_x broadcast."""
    b_near = rise + epsilon * (b_x - top)
    m_inside = b_near < float("inf")
    b_near = tl.where(m_inside, b_near, 0.0)
    b_u = b_near + 1
    b_log = tl.log(b_u) + (b_near - (b_u - 1)) / b_u
    return tl.where(m_inside, tl.exp(b_log / epsilon), 0.0)


@triton.jit
def power_of(least, epsilon):
    """y_k^ε, and zero at zero."""
    return tl.where(least > 0, tl.exp(epsilon * tl.log(tl.where(least > 0, least, 1.0))), 0.0)


@triton.jit
def _load(p_row, o, d):
    """Scores in float64, the largest number in place of +inf."""
    b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
    return tl.minimum(b_x, largest(tl.float64))


@triton.jit
def _steep_sums(p_row, d, pivot, least, epsilon, M: tl.constexpr):
    """Σ y, and how fast it grows with the entry at the pivot: Σ (y_k/y)^(α−2)."""
    power = power_of(least, epsilon)
    b_total = tl.zeros([M], tl.float64)
    b_slope = b_total
    for start in range(0, d, M):
        # (M,)
        b_y = steep_entries(_load(p_row, start + tl.arange(0, M), d), pivot, least, power, epsilon)
        m_in = tl.where(least > 0, b_y, 0.0) > 0
        b_log = tl.log(tl.where(m_in, least / tl.where(m_in, b_y, 1.0), 1.0))
        b_total += b_y
        b_slope += tl.where(m_in, tl.exp((epsilon - 1) * b_log), 0.0)
    return tl.sum(b_total, 0), tl.sum(b_slope, 0)


@triton.jit
def _count(p_row, d, pivot, M: tl.constexpr):
    """How many scores are above the pivot, and how many equal it."""
    b_above = tl.zeros([M], tl.float64)
    b_equal = b_above
    for start in range(0, d, M):
        # (M,)
        b_x = _load(p_row, start + tl.arange(0, M), d)
        b_above += (b_x > pivot).to(tl.float64)
        b_equal += (b_x == pivot).to(tl.float64)
    return tl.sum(b_above, 0), tl.sum(b_equal, 0)


@triton.jit
def _probe(p_row, d, low, high, M: tl.constexpr):
    """The least score above the middle of (low, high), or else the largest below; −inf if none."""
    middle = low + (high - low) / 2
    b_upper = tl.full([M], float("inf"), tl.float64)
    b_lower = -b_upper
    for start in range(0, d, M):
        # (M,)
        b_x = _load(p_row, start + tl.arange(0, M), d)
        m_upper, m_lower = (b_x > middle) & (b_x < high), (b_x > low) & (b_x <= middle)
        b_upper = tl.minimum(b_upper, tl.where(m_upper, b_x, float("inf")))
        b_lower = tl.maximum(b_lower, tl.where(m_lower, b_x, -float("inf")))
    upper = tl.min(b_upper, 0)
    return tl.where(upper < float("inf"), upper, tl.max(b_lower, 0))


@triton.jit
def _steep_root(p_row, d, top, epsilon, M: tl.constexpr):
    """The pivot and its entry. A score is in the support if the entries above it, were it the
    threshold, sum to less than one; every probe halves the range of those in doubt."""
    zero = top * 0
    low, high = top - (1 + 1e-12) / epsilon, top
    probe, steps = _probe(p_row, d, low, high, M), 0
    while (steps < 1200) & (probe > -float("inf")):
        above, _ = _steep_sums(p_row, d, probe, zero, epsilon, M)
        high = tl.where(above < 1, probe, high)
        low = tl.where(above < 1, low, probe)
        probe = _probe(p_row, d, low, high, M)
        steps += 1
    above, _ = _steep_sums(p_row, d, high, zero, epsilon, M)
    more, ties = _count(p_row, d, high, M)
    # The sum is convex in the entry: Newton from the right goes down to the root.
    least = tl.minimum((1 - above) / ties, 1 / (more + ties))
    steps, going = 0, tl.full([], 1, tl.int32)
    while (steps < 100) & (going > 0):
        total, slope = _steep_sums(p_row, d, high, least, epsilon, M)
        moved = least - (total - 1) / slope
        lower = (moved < least) & (moved > 1e-300)
        least = tl.where(lower, moved, least)
        going = lower.to(tl.int32)
        steps += 1
    return high, least


@triton.jit
def _heavy_sums(p_row, d, top, rise, epsilon, M: tl.constexpr):
    """Σ y and Σ y/u."""
    b_total = tl.zeros([M], tl.float64)
    b_below = b_total
    for start in range(0, d, M):
        # (M,)
        b_x = _load(p_row, start + tl.arange(0, M), d)
        b_y = heavy_entries(b_x, top, rise, epsilon)
        b_total += b_y
        b_below += tl.where(b_y > 0, b_y / (1 + rise + epsilon * (b_x - top)), 0.0)
    return tl.sum(b_total, 0), tl.sum(b_below, 0)


@triton.jit
def _heavy_root(p_row, d, top, epsilon, M: tl.constexpr):
    """s − 1. The norm of u is concave in s: Newton from the left goes up to the root."""
    rise, steps, going = top * 0, 0, tl.full([], 1, tl.int32)
    while (steps < 100) & (going > 0):
        total, below = _heavy_sums(p_row, d, top, rise, epsilon, M)
        log_total = -epsilon * tl.log(total)
        moved = rise + log_total * expm1_over(log_total) * total / below
        going = (moved > rise).to(tl.int32)
        rise = tl.maximum(moved, rise)
        steps += 1
    return rise


@triton.jit
def outside_row(
    p_x, p_y, p_value, p_state, row, alpha, d, stride,
    WRITE: tl.constexpr, STATE: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Solves one row, if its α is outside [1, 2]."""
    epsilon = alpha - 1
    if (alpha > 2) | (alpha < 1):
        p_row = p_x + row * stride
        b_top = tl.full([M], -float("inf"), tl.float64)
        for start in range(0, d, M):
            o = start + tl.arange(0, M)
            # (M,)
            b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(tl.float64)
            b_top = tl.maximum(b_top, b_x, propagate_nan=tl.PropagateNan.ALL)
        top = tl.reduce(b_top, 0, larger)
        top = tl.where((alpha > 0) & (alpha < float("inf")), top, float("nan"))
        peak = finite(top, tl.float64)
        steep = alpha > 2
        point, unknown, power = peak, top * 0, top * 0
        if (top == top) & (top > -float("inf")):
            if steep:
                point, unknown = _steep_root(p_row, d, peak, epsilon, M)
                power = power_of(unknown, epsilon)
            else:
                unknown = _heavy_root(p_row, d, peak, epsilon, M)
        b_total = tl.zeros([M], tl.float64)
        b_rounded, b_moment, b_peak = b_total, b_total, b_total
        for start in range(0, d, M):
            # (M,)
            b_x = _load(p_row, start + tl.arange(0, M), d)
            if steep:
                b_y = steep_entries(b_x, point, unknown, power, epsilon)
            else:
                b_y = heavy_entries(b_x, point, unknown, epsilon)
            b_term = b_y - b_rounded  # the sum as if in twice the precision
            b_sum = b_total + b_term
            b_rounded = (b_sum - b_total) - b_term
            b_total = b_sum
            b_moment += tl.where(b_y > 0, b_y * (peak - b_x), 0.0)
            b_peak = tl.maximum(b_peak, b_y)
        total = tl.sum(b_total, 0)
        empty = top == -float("inf")
        share = tl.where(empty, 0.0, tl.where(top == top, 1 / total, top))
        if STATE:
            log_peak = epsilon * tl.log(tl.max(b_peak, 0) * share)
            loss = -log_peak * expm1_over(log_peak) / epsilon
            value = top + (loss - epsilon * tl.sum(b_moment, 0) * share) / alpha
            tl.store(p_value + row, tl.where(empty, top, value))
            p_state += 4 * row
            tl.store(p_state, tl.where(steep & ~empty, point + top * 0, top))
            tl.store(p_state + 1, tl.where(steep, unknown * share, unknown))
            tl.store(p_state + 2, top * 0)
            tl.store(p_state + 3, tl.where(steep & (share > 0), 1.0, share))
        if WRITE:
            for start in range(0, d, M):
                o = start + tl.arange(0, M)
                # (M,)
                b_x = _load(p_row, o, d)
                if steep:
                    b_y = steep_entries(b_x, point, unknown, power, epsilon)
                else:
                    b_y = heavy_entries(b_x, point, unknown, epsilon)
                b_y = rounded(b_y * share, p_y.dtype.element_ty)
                tl.store(p_y + row * d + o, b_y, mask=o < d)


@triton.jit
def outside_forward_kernel(
    p_x, p_y, p_value, p_state, p_parameter, parameter: tl.float64, n, d, stride,
    PER_ROW: tl.constexpr, WRITE: tl.constexpr, STATE: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    alpha = tl.full([], parameter, tl.float64)
    if PER_ROW:
        alpha = tl.load(p_parameter + row).to(tl.float64)
    outside_row(p_x, p_y, p_value, p_state, row, alpha, d, stride, WRITE, STATE, M)


@triton.jit
def weights_outside(b_x, top, rise, alpha):
    """y over the share, from a block (R, D) of scores in float64 and states (R,)."""
    b_x = tl.minimum(b_x, largest(tl.float64))
    point, epsilon = finite(top, tl.float64)[:, None], (alpha - 1)[:, None]
    power = power_of(rise, alpha - 1)[:, None]
    b_steep = steep_entries(b_x, point, rise[:, None], power, epsilon)
    b_heavy = heavy_entries(b_x, point, rise[:, None], epsilon)
    return tl.where((alpha > 2)[:, None], b_steep, b_heavy)
