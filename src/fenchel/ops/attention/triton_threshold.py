"""The threshold of a row of attention: the powers of a tile, and the steps towards their sum of 1.

With t = x − top, at most 0 and computed with one rounding, a weight is p = u^r with u = t + base
and r = 1/(α − 1). The base is what lies between the threshold and the largest score, in
[n^(1−α), 1] for n scores, and the unknown of the equation Σ p = 1.

KIND says how: it is r where that is 1 to 4, so that no logarithm is needed; LINEAR (α = 2) and
QUADRATIC (α = 1.5) solve the equation of the current support in closed form. FAST uses the short
logarithm of the GPU; ANY does for every α. There,
up to α = 2, base + rest is the unknown, because a power 1/(α − 1) magnifies what u rounds. Above 2
u^r is so steep at zero that no float32 threshold would do. So the unknown is the smallest weight of
the support: `base` is then its distance from the top, `rest` the weight, and u = t + base +
rest^(α−1).
"""

import triton
import triton.language as tl

from .._triton.root import expm1_over, fast_exp2, fast_log2, row_sum, row_sums

LINEAR = tl.constexpr(1)
QUADRATIC = tl.constexpr(2)
QUARTIC = tl.constexpr(4)
FAST = tl.constexpr(0)
ANY = tl.constexpr(-1)
NARROW = tl.constexpr(1 + 1 / 64)
"""The smallest α for which half precision does not show what FAST rounds."""

LARGEST = tl.constexpr(3.4028234663852886e38)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def rise(b_t, base):
    """u between 0 and 1: an infinite score counts as the largest."""
    if _INTERPRETED:
        return tl.minimum(tl.maximum(b_t + base, 0.0), 1.0)
    else:
        return tl.inline_asm_elementwise(
            "add.sat.f32 $0, $1, $2;", "=f,f,f", [b_t, base], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def rise_from(b_z, factor, shift):
    """u = factor z + shift between 0 and 1, in one instruction; all but b_z broadcast."""
    if _INTERPRETED:
        return tl.minimum(tl.maximum(b_z * factor + shift, 0.0), 1.0)
    else:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [b_z, factor, shift],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def power_of(y, exponent):
    """y^exponent of positive numbers, 0 otherwise."""
    m_in = y > 0
    return tl.where(m_in, tl.exp(exponent * tl.log(tl.where(m_in, y, 1.0))), 0.0)


@triton.jit
def any_powers(b_t, base, rest, alpha):
    """u (1 where the weight is 0) and p, of rows with any α; all but b_t broadcast."""
    steep = alpha > 2
    b_t = tl.minimum(b_t, 0.0)
    b_v = b_t + base
    m_in = b_v > 0
    b_u = tl.where(m_in, b_v + tl.where(steep, power_of(rest, alpha - 1), 0.0), 1.0)
    # What v rounded, and the rest, count to first order.
    b_rest = tl.where(steep | (b_v <= 0), 0.0, (b_t - (b_v - base)) + rest)
    b_p = tl.where(m_in, tl.exp((tl.log(b_u) + b_rest / b_u) / (alpha - 1)), 0.0)
    return b_u, tl.where(steep & (b_v == 0), rest, b_p)


@triton.jit
def powers(b_u, alpha, KIND: tl.constexpr):
    """p, and p^(2−α) on the support, not of ANY; α broadcasts."""
    if KIND == LINEAR:
        return b_u, tl.where(b_u > 0, 1.0, 0.0)
    elif KIND == QUADRATIC:
        return b_u * b_u, b_u
    elif KIND > QUADRATIC:
        b_w = b_u * b_u * b_u if KIND == QUARTIC else b_u * b_u
        return b_u * b_w, b_w
    else:
        r = 1 / (alpha - 1)
        b_log = fast_log2(b_u)
        b_w = tl.where(b_u > 0, fast_exp2((r - 1) * b_log), 0.0)
        return b_u * b_w, b_w


@triton.jit
def weights_tile(b_t, base, rest, alpha, KIND: tl.constexpr):
    """p, and p^(2−α) on the support; all but b_t broadcast."""
    if KIND == ANY:
        _, b_p = any_powers(b_t, base, rest, alpha)
        return b_p, power_of(b_p, 2 - alpha)
    else:
        return powers(rise(b_t, base), alpha, KIND)


@triton.jit
def terms(b_t, base, rest, alpha, KIND: tl.constexpr):
    """Of each t p, its slope, and what else a step needs; all but b_t broadcast.

    The slope is p/u up to a factor, or above α = 2 that in the smallest weight. The third is 1 in
    the support of QUADRATIC, and of ANY the distance from the top in the support.
    """
    if KIND == ANY:
        b_u, b_p = any_powers(b_t, base, rest, alpha)
        b_ratio = tl.where(b_p > 0, rest / tl.where(b_p > 0, b_p, 1.0), 0.0)
        b_slope = tl.where(alpha > 2, power_of(b_ratio, alpha - 2), b_p / b_u)
        return b_p, b_slope, tl.where(b_p > 0, -b_t, 0.0)
    else:
        b_p, b_w = weights_tile(b_t, base, rest, alpha, KIND)
        if KIND == QUADRATIC:
            return b_p, b_w, tl.where(b_w > 0, 1.0, 0.0)
        else:
            return b_p, b_w, tl.zeros_like(b_p)


@triton.jit
def merge_moments(one, other, KIND: tl.constexpr):
    """The moments, or terms, of two parts of a row as one."""
    if KIND == ANY:
        return one[0] + other[0], one[1] + other[1], tl.maximum(one[2], other[2])
    else:
        return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@triton.jit
def sum_terms(b_terms, KIND: tl.constexpr):
    """The moments of rows from their terms, (M, N) each."""
    b_p, b_slope, b_third = b_terms
    if KIND == QUADRATIC:
        return row_sums(b_p, b_slope, b_third)
    total, slope = row_sum(b_p), row_sum(b_slope)
    if KIND == ANY:
        return total, slope, tl.max(b_third, 1)
    else:
        return total, slope, tl.zeros_like(total)


@triton.jit
def moments(b_t, base, rest, alpha, KIND: tl.constexpr):
    """Over each row of t, (M, N): the sums of `terms`, of ANY the largest third; others (M,)."""
    return sum_terms(terms(b_t, base[:, None], rest[:, None], alpha[:, None], KIND), KIND)


@triton.jit
def partial_sums(b_x, IS_HALF: tl.constexpr):
    """Sums over parts of each row, (M, N) → (M, parts): of half precision those that a lane holds
    on the tensor cores' layout, so that no lanes exchange anything."""
    if IS_HALF:
        return tl.sum(tl.reshape(b_x, [b_x.shape[0], b_x.shape[1] // 8, 8]), 1)
    else:
        return tl.sum(b_x, 1)[:, None]


@triton.jit
def newton(total, slope, alpha):
    """Newton's step of the base for the root of order 1/(α − 1) of the sum, which is convex."""
    log = (alpha - 1) * tl.log(total)
    return total / slope * log * expm1_over(-log)


@triton.jit
def halley(total, slope, curve, alpha):
    """A step of the base from far away: Newton's, for the root of that order with which the sum
    grows here as its second derivative says. It converges with the third power."""
    r = 1 / (alpha - 1)
    part = tl.minimum((r - 1) / r * total * curve / (slope * slope), 0.98)
    order = tl.maximum(1 / (1 - part), r)
    log = tl.log(total) / order
    return total / slope * (alpha - 1) * order * log * expm1_over(-log)


@triton.jit
def far_terms(b_u, alpha, KIND: tl.constexpr):
    """p, and its first two derivatives in u up to the factors r and r (r − 1), not of ANY."""
    b_p, b_w = powers(b_u, alpha, KIND)
    if KIND == LINEAR:
        return b_p, b_w, tl.zeros_like(b_u)
    elif KIND == QUADRATIC:
        return b_p, b_w, tl.where(b_u > 0, 1.0, 0.0)
    elif KIND > QUADRATIC:
        return b_p, b_w, b_u * b_u if KIND == QUARTIC else b_u
    else:
        b_curve = fast_exp2((1 / (alpha - 1) - 2) * fast_log2(b_u))
        return b_p, b_w, tl.where(b_u > 0, b_curve, 0.0)


@triton.jit
def is_near(total, alpha):
    """Whether a step from here leaves a sum that the next pass can settle."""
    return tl.abs(total - 1) < tl.where(alpha < 1.4, 0.15, 0.06)


@triton.jit
def is_last(step, sums, base, alpha, n, TOLERANCE: tl.constexpr, KIND: tl.constexpr):
    """Whether Σ p is within TOLERANCE of 1 after this step, or it is as short as rounding.

    LINEAR and QUADRATIC err only by the scores that cross the threshold: at most those of the
    support if it rises, and all n if it falls, each by the step or its square. Newton's error is
    the square of its step, or the power r if that is less.
    """
    size = tl.abs(step)
    if KIND == LINEAR:
        short = tl.where(step > 0, sums[1], n) * size <= TOLERANCE
    elif KIND == QUADRATIC:
        short = tl.where(step > 0, sums[2], n) * size * size <= TOLERANCE
    else:
        r = 1 / (alpha - 1)
        tolerance = tl.full(alpha.shape, TOLERANCE, tl.float32)
        short = size <= tl.exp(tl.log(tolerance) / tl.minimum(r, 2.0)) / (2 * r) * base
    return short | (size <= 2.0**-22 * base)


@triton.jit
def advance(
    sums, base, rest, low, high, done, alpha, n, TOLERANCE: tl.constexpr, KIND: tl.constexpr
):
    """One step of the base from the moments at it; rows that are done stay.

    The sum is convex in the threshold, and so is its root of order r. From a threshold that is too
    low Newton's steps never pass the solution; that of QUADRATIC may, within the bracket. Above
    α = 2 a step halves the bracket.
    """
    total, slope, third = sums
    gap = total - 1
    if KIND == LINEAR:
        step = gap / slope
    elif KIND == QUADRATIC:
        discriminant = slope * slope - third * gap
        step = gap / (slope + tl.sqrt_rn(tl.maximum(discriminant, 0.0)))
        step = tl.where(discriminant < 0, gap / (2 * slope), step)
    else:
        step = newton(total, slope, alpha)
    high = tl.where(gap >= 0, base, high)
    low = tl.where(gap >= 0, low, base)
    last = is_last(step, sums, base, alpha, n, TOLERANCE, KIND)
    moved = base - step
    is_inside = (moved > low) & (moved < high)
    if KIND == ANY:
        steep = alpha > 2
        last, is_inside = last & ~steep, is_inside & ~steep
        rest = tl.where(last & ~done, -step, rest)
        moved = tl.where(last, base, moved)
        done = done | (steep & (high - low <= 2.0**-25))
    moved = tl.where(is_inside | last, moved, low + (high - low) / 2)
    base = tl.where(done, base, moved)
    return base, rest, low, high, done | last | (base == low) | (base == high)


@triton.jit
def subset_base(
    b_first, b_second, b_sink, least, alpha, done, n, TOLERANCE: tl.constexpr, KIND: tl.constexpr
):
    """The base of the two largest scores of each class, (M, N), and the sink, (M, 1).

    It is at least that of the complete row, because more scores raise the threshold.
    """
    high = least * 0 + 1
    base, rest, low, solved, steps = high, high * 0, least, done, 0
    while (steps < 40) & (tl.min(solved.to(tl.int32), 0) == 0):
        sums = moments(b_sink, base, rest, alpha, KIND)
        sums = merge_moments(sums, moments(b_first, base, rest, alpha, KIND), KIND)
        sums = merge_moments(sums, moments(b_second, base, rest, alpha, KIND), KIND)
        base, rest, low, high, solved = advance(
            sums, base, rest, low, high, solved, alpha, n, TOLERANCE, KIND
        )
        steps += 1
    if KIND == ANY:
        return tl.where(alpha > 2, tl.minimum(high * (1 + 1e-6), 1.0), base)
    else:
        return base


@triton.jit
def narrow(sums, trial, low, high, farthest, walked, found):
    """One step of the search for the smallest weight's distance from the top, above α = 2.

    As base, `low` gives a sum below 1 and `high` does not; `farthest` is the largest distance of a
    score below `high`. It is in the support if it is at most `low`. Steps take turns: `farthest`
    itself, and the middle of the bracket.
    """
    is_over = sums[0] >= 1
    high = tl.where(is_over, trial, high)
    low = tl.where(is_over, low, trial)
    farthest = tl.where(is_over, sums[2], farthest)
    walked = is_over & ~walked
    found = found | (farthest <= low)
    trial = tl.where(found, trial, tl.where(walked, farthest, low + (high - low) / 2))
    return trial, low, high, farthest, walked, found


@triton.jit
def lessen(sums, least, done):
    """One step of the smallest weight: the sum is convex in it, so it comes down to the root."""
    moved = least - (sums[0] - 1) / sums[1]
    is_lower = ~done & (moved < least) & (moved > 0)
    done = done | ~is_lower | (least - moved <= 2.0**-21 * least)
    return tl.where(is_lower, moved, least), done
