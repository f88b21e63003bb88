"""One scalar unknown per row, on a GPU: what the kernels of every thresholded mapping share.

Let t = c(x − top) ≤ 0, top the largest score of the row. The unknown s sets u = s + t, and the
solution is proportional to a power of u where u > 0. ENTMAX and NORM ask for Σ u^r = 1: ENTMAX with
c = α − 1 = 1/r, 1 ≤ α ≤ 2, NORM with c = 1 and r = q. SQUARED asks for Σ u^(q−1) = ‖u‖_q^(q−2),
with c = 1 and r = q − 1. See docs/concepts/mappings.md.

The unknown is s − 1 = rise + rest, a number and what it rounds: where entries are many and small,
the last place of one number, times their count, would end up in the largest. u is (s + t), exact
where it is small, plus what s itself rounds.

Rows lie side by side in blocks (R, D); a quantity of a row has shape (R,). POWER is r where that is
small and whole, so that no logarithm is needed, or else FAST (r is small, and a short logarithm
does) or SLOW.
"""

import triton
import triton.language as tl

ENTMAX = tl.constexpr(0)
NORM = tl.constexpr(1)
SQUARED = tl.constexpr(2)
FAST = tl.constexpr(0)
SLOW = tl.constexpr(-1)


_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def fast_log2(x):
    """log₂ x to 2⁻²² in absolute terms, by the one instruction that the GPU has for it."""
    if _INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def fast_exp2(x):
    """2ˣ to 2⁻²² of its value, likewise."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def rounded(b_x, dtype: tl.constexpr):
    """The block in another type, to half precision by way of float32."""
    return b_x.to(tl.float32).to(dtype) if dtype.primitive_bitwidth == 16 else b_x.to(dtype)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_max(b_x):
    """The largest entry of each row, NaN if one is."""
    return tl.reduce(b_x, 1, larger)


@triton.jit
def _add_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def round_terms(b_x):
    """The same numbers, rounded before they are added up.

    Otherwise, of a product that two lanes exchange, each would add its own unrounded to the
    other's rounded one. Their sums would differ in the last bit. The lanes would leave a loop at
    different times, and lose what they exchange.
    """
    if _INTERPRETED:
        return b_x
    elif b_x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, 0f00000000;", "=f,f", [b_x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "add.rn.f64 $0, $1, 0d0000000000000000;", "=d,d", [b_x], dtype=tl.float64, is_pure=True,
            pack=1,
        )  # fmt: skip


@triton.jit
def row_sums(b_a, b_b, b_c):
    """Three sums over each row, in one reduction, the same for all lanes that hold the row."""
    if b_a.shape[1] <= 32:  # a lane may have a single entry; of several it rounds the sum
        b_a, b_b, b_c = round_terms(b_a), round_terms(b_b), round_terms(b_c)
    return tl.reduce((b_a, b_b, b_c), 1, _add_three)


@triton.jit
def row_sum(b_x):
    """One sum over each row, the same for all lanes that hold the row."""
    return tl.sum(round_terms(b_x) if b_x.shape[1] <= 32 else b_x, 1)


@triton.jit
def expm1_over(x):
    """(eˣ − 1)/x, and 1 at x = 0."""
    series = 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))))
    near = tl.abs(x) < 0.1
    return tl.where(near, series, (tl.exp(x) - 1) / tl.where(near, 1.0, x))


@triton.jit
def exponents(b_parameter, KIND: tl.constexpr):
    """c, r and the power of the solution, from α or p in float64."""
    if KIND == ENTMAX:
        # At α = 1 a c so small that no rounding tells u^r from the exponential.
        c = tl.maximum(b_parameter - 1, 1e-17)
        r = 1 / c
        out = r
    else:
        c = b_parameter * 0 + 1
        out = 1 / (b_parameter - 1)
        r = out + 1 if KIND == NORM else out
    return c, r, out


@triton.jit
def largest(TYPE: tl.constexpr):
    """The largest finite number, which stands for +inf."""
    return 3.4028234663852886e38 if TYPE == tl.float32 else 1.7976931348623157e308


@triton.jit
def finite(top, TYPE: tl.constexpr):
    return tl.where(top == top, tl.minimum(tl.maximum(top, -largest(TYPE)), largest(TYPE)), top)


@triton.jit
def tilt(b_x, top, c, TYPE: tl.constexpr):
    """t of each entry, from a finite top."""
    return (tl.minimum(b_x, largest(TYPE)) - top[:, None]) * c[:, None]


@triton.jit
def unpair(rise, rest):
    """s as point and rest, from s − 1 as rise and rest."""
    point = rise + 1
    return point, (rise - (point - 1)) + rest


@triton.jit
def raise_to(b_tilt, rise, rest, r, POWER: tl.constexpr, PAIR: tl.constexpr):
    """max(u, 0) (1 in place of 0 if POWER is SLOW), and its power r. Without PAIR s is one number,
    unless POWER is SLOW."""
    point, low = unpair(rise, rest)
    b_u = point[:, None] + b_tilt
    if PAIR or POWER == SLOW:
        b_u += low[:, None]
    if POWER == SLOW:
        b_near = (rise[:, None] + b_tilt) + rest[:, None]
        m_near = b_near > -0.5  # where u − 1 says more than u
        m_inside = b_u > 0
        b_u = tl.where(m_near, b_near + 1, tl.where(m_inside, b_u, 1.0))
        # The second term is what u rounded.
        b_log = tl.log(b_u) + tl.where(m_near, (b_near - (b_u - 1)) / b_u, 0.0)
        b_power = tl.where(m_inside, tl.exp(r[:, None] * b_log), 0.0)
    else:
        b_u = tl.maximum(b_u, 0.0)
        if POWER == FAST:
            b_power = fast_exp2(r[:, None] * fast_log2(b_u))
        else:
            b_power = b_u
            for _ in tl.static_range(POWER - 1):
                b_power = b_power * b_u
    return b_u, b_power


@triton.jit
def solution_power(b_tilt, rise, rest, out, POWER: tl.constexpr):
    """What the solution is proportional to."""
    b_u, b_power = raise_to(b_tilt, rise, rest, out, POWER, True)
    return b_power


@triton.jit
def power_terms(b_tilt, rise, r, POWER: tl.constexpr, KIND: tl.constexpr):
    """The terms of three sums of powers: u^r, and two more that a step needs."""
    b_u, b_at = raise_to(b_tilt, rise, rise * 0, r, POWER, False)
    b_one = tl.where(b_u > 0, 1.0, 0.0).to(b_u.dtype)
    if POWER == FAST:
        b_lower = fast_exp2((r - 2)[:, None] * fast_log2(b_u))
        b_lower = tl.where(b_u > 0, b_lower, 0.0)
        b_below = b_lower * b_u
        b_at = b_below * b_u
    elif POWER == SLOW:
        b_below = b_at / b_u
        b_lower = b_below / b_u
    else:
        b_lower, b_below = b_one, b_one
        for _ in tl.static_range(POWER - 2):
            b_lower = b_lower * b_u
        for _ in tl.static_range(POWER - 1):
            b_below = b_below * b_u
    if KIND == SQUARED:
        return b_at, b_at * b_u, b_below
    else:
        return b_at, b_below, b_lower


@triton.jit
def newton(at, second, third, r, POWER: tl.constexpr, KIND: tl.constexpr):
    """What the three sums exceed the equation by, and the step that this asks for."""
    if KIND == SQUARED:
        excess = tl.log(at) - (r - 1) / (r + 1) * tl.log(second)
        step = excess / (r * third / at - (r - 1) * at / second)
    elif POWER == 1:
        excess = at - 1
        step = excess / second
    elif POWER == 2:
        # The quadratic's own root: exact once the support stands still.
        excess = at - 1
        step = excess / (second + tl.sqrt(tl.maximum(second * second - third * excess, 0.0)))
    else:
        # Halley on the r-norm of u: exact in one step when all scores are equal, or r is infinite.
        log_at = tl.log(at)
        excess = log_at * expm1_over(-log_at / r)
        # The denominators of Newton's and of Halley's step, up to a factor.
        newton_slope = second * second
        halley_slope = newton_slope - excess * (1 - 1 / r) * (third * at - newton_slope) / 2
        halley_slope = tl.where(
            (halley_slope > 0.5 * newton_slope) & (halley_slope < 2 * newton_slope),
            halley_slope,
            newton_slope,
        )
        step = excess * at * second / (halley_slope * r)
    return excess, step


@triton.jit
def advance(
    at, second, third, rise, kept, low, high, shortest, done, r,
    POWER: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """One step towards the root from the three sums; rows that are done stay. A short step is the
    last: it is kept for `rest_after`, not taken."""
    excess, step = newton(at, second, third, r, POWER, KIND)
    high = tl.where(excess > 0, rise, high)
    low = tl.where(excess > 0, low, rise)
    is_short = tl.abs(step) <= shortest * (1 + rise)
    moved = rise - step
    inside = (moved > low) & (moved < high)
    moved = tl.where(inside, moved, low + (high - low) / 2)
    kept = tl.where(done, kept, tl.where(is_short, step, 0.0))
    rise = tl.where(done | is_short, rise, moved)
    return rise, kept, low, high, done | is_short | (rise == low) | (rise == high)


@triton.jit
def rest_after(rise, kept, POWER: tl.constexpr):
    """What s − 1 has besides rise, after the step that was kept."""
    if POWER == SLOW:
        return -kept
    else:
        return (((rise + 1) - 1) - rise) - kept  # the sums were those at one number


@triton.jit
def correct(total, slope, rise, rest, r):
    """The step that makes powers that sum to total, of slope Σ u^(r−1), sum to one."""
    moved = rest - ((total - 1) / (r * slope)).to(rest.dtype)
    point = rise + moved
    return point, moved - (point - rise)


@triton.jit
def bracket(d, r, out, RESOLUTION: tl.constexpr, ROUNDING: tl.constexpr, KIND: tl.constexpr):
    """The least s − 1 of a row of d entries, and a step so short that the next would not show."""
    log_d = tl.log(r * 0 + d)
    drop = log_d / r if KIND != SQUARED else 2 * log_d / (r + 1)
    # Halley's error is the cube of its step, Newton's the square.
    lowest = tl.minimum(tl.minimum(r, out), 2.0 if KIND == SQUARED else 3.0)
    shortest = 0.5 * tl.exp(tl.log(r * 0 + RESOLUTION) / lowest) / r + 1.5 * ROUNDING
    least = -drop * expm1_over(-drop) * (1 + 1e-3) - 4 * ROUNDING * tl.minimum(drop, 1.0)
    return tl.maximum(least, r * 0 + ROUNDING - 1), shortest


@triton.jit
def row_constants(
    p_parameter, parameter, c, r, out, least, shortest, o_row, m_row, d,
    RESOLUTION: tl.constexpr, ROUNDING: tl.constexpr, PER_ROW: tl.constexpr, KIND: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """α or p, c, r, the power of the solution, and the bracket of each row, (R,): computed here if
    they differ from row to row, and by the host otherwise."""
    if PER_ROW:
        # (R,)
        b_parameter = tl.load(p_parameter + o_row, mask=m_row, other=2.0).to(tl.float64)
        b_c, b_r, b_out = exponents(b_parameter, KIND)
        b_least, b_shortest = bracket(d, b_r, b_out, RESOLUTION, ROUNDING, KIND)
        b_parameter, b_c, b_r = b_parameter.to(TYPE), b_c.to(TYPE), b_r.to(TYPE)
        b_out, b_least, b_shortest = b_out.to(TYPE), b_least.to(TYPE), b_shortest.to(TYPE)
    else:
        b_parameter = tl.full(o_row.shape, parameter, TYPE)
        b_c, b_r = tl.full(o_row.shape, c, TYPE), tl.full(o_row.shape, r, TYPE)
        b_out, b_least = tl.full(o_row.shape, out, TYPE), tl.full(o_row.shape, least, TYPE)
        b_shortest = tl.full(o_row.shape, shortest, TYPE)
    return b_parameter, b_c, b_r, b_out, b_least, b_shortest
