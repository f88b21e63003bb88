"""The kernels that solve thresholded mappings: short rows in registers, long ones in two reads."""

import triton
import triton.language as tl

from .root import (
    ENTMAX,
    advance,
    correct,
    finite,
    power_terms,
    raise_to,
    rest_after,
    rounded,
    row_constants,
    row_max,
    row_sum,
    row_sums,
    solution_power,
    tilt,
)  # fmt: skip


@triton.jit
def _finalize_rows(
    p_value, p_state, o_row, m_row, top, rise, rest, total, moment, b_parameter, c,
    STATE: tl.constexpr,
):  # fmt: skip
    """The share of u^r that makes it sum to one; with STATE, writes what a row leaves behind: the
    value max_Ω of entmax, and top, s − 1 and the share, from which y can be computed again."""
    empty = top == -float("inf")
    share = tl.where(empty, 0.0, tl.where(top == top, 1 / total, top))
    if STATE:
        loss = (moment * share - (rise + rest) / c) / b_parameter
        value = top.to(tl.float64) + tl.where(empty, 0.0, loss).to(tl.float64)
        tl.store(p_value + o_row, value, mask=m_row)
        tl.store(p_state + 4 * o_row, top, mask=m_row)
        tl.store(p_state + 4 * o_row + 1, rise, mask=m_row)
        tl.store(p_state + 4 * o_row + 2, rest, mask=m_row)
        tl.store(p_state + 4 * o_row + 3, share, mask=m_row)
    return share


@triton.jit
def _checked_top(b_top, b_parameter, KIND: tl.constexpr):
    """The largest score of each row, NaN where its parameter has no meaning."""
    least = 0 if KIND == ENTMAX else 1
    return tl.where((b_parameter > least) & (b_parameter < float("inf")), b_top, float("nan"))


@triton.jit
def _block_root(
    b_tilt, rise, least, shortest, ready, r, max_steps, POWER: tl.constexpr, KIND: tl.constexpr
):
    """The root on a block (R, D) from a start, in few enough steps; rows that are ready stay."""
    low, high, kept, done, steps = least, least * 0, least * 0, ready, 0
    while (steps < max_steps) & (tl.min(done.to(tl.int32), 0) == 0):
        b_at, b_second, b_third = power_terms(b_tilt, rise, r, POWER, KIND)
        at, second, third = row_sums(b_at, b_second, b_third)
        rise, kept, low, high, done = advance(
            at, second, third, rise, kept, low, high, shortest, done, r, POWER, KIND
        )
        steps += 1
    return rise, rest_after(rise, kept, POWER)


@triton.jit
def _is_off(total, ready, RESOLUTION: tl.constexpr, POWER: tl.constexpr):
    """Which rows' powers do not sum to one, by more than they are rounded."""
    return (tl.abs(total - 1) > (4 if POWER > 0 else 16) * RESOLUTION) & ~ready


@triton.jit
def _slopes(b_tilt, rise, rest, r, POWER: tl.constexpr):
    """u^r and u^(r−1)."""
    b_u, b_y = raise_to(b_tilt, rise, rest, r, POWER, True)
    if POWER == 1:
        return b_y, tl.where(b_y > 0, 1.0, 0.0)
    elif POWER == 2:
        return b_y, b_u
    else:
        return b_y, tl.where(b_y > 0, b_y / b_u, 0.0)


@triton.jit
def _start(b_tilt, least, shortest, ready, r, START: tl.constexpr, KIND: tl.constexpr):
    """Roughly the root on a part of the row, which is close to that of the whole."""
    rise, rest = _block_root(b_tilt, least * 0, least, shortest + 1e-3, ready, r, 12, START, KIND)
    return tl.minimum(tl.maximum(rise + rest, least), 0.0)


@triton.jit
def short_forward_kernel(
    p_x, p_y, p_value, p_state, p_parameter,
    parameter: tl.float64, c: tl.float64, r: tl.float64, out: tl.float64,
    least: tl.float64, shortest: tl.float64, n, d, stride,
    KIND: tl.constexpr, POWER: tl.constexpr, OUT: tl.constexpr, START: tl.constexpr,
    PER_ROW: tl.constexpr, EXACT: tl.constexpr, WRITE: tl.constexpr, STATE: tl.constexpr,
    RESOLUTION: tl.constexpr, ROUNDING: tl.constexpr, TYPE: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    m_row = o_row < n
    b_parameter, c, r, out, least, shortest = row_constants(
        p_parameter, parameter, c, r, out, least, shortest, o_row, m_row, d,
        RESOLUTION, ROUNDING, PER_ROW, KIND, TYPE,
    )  # fmt: skip
    if PER_ROW:
        m_row = m_row & (((b_parameter > 2) | (b_parameter < 1)) == EXACT)
    o_column = tl.arange(0, D)
    m_entry = m_row[:, None] & (o_column < d)[None, :]
    # (R, D)
    b_x = tl.load(
        p_x + o_row[:, None] * stride + o_column[None, :], mask=m_entry, other=-float("inf")
    ).to(TYPE)
    top = _checked_top(row_max(b_x), b_parameter, KIND)
    b_tilt = tilt(b_x, finite(top, TYPE), c, TYPE)
    rise = least * 0
    ready = (top == -float("inf")) | (top != top)
    if GROUP > 1:
        # The part is the largest of each group.
        W: tl.constexpr = D // GROUP
        o_part = (tl.arange(0, GROUP) * W)[:, None] + tl.arange(0, W)[None, :]
        # (R, GROUP, W), read again from the cache: another layout of the registers costs more
        b_part = tl.load(
            p_x + o_row[:, None, None] * stride + o_part[None, :, :],
            mask=m_row[:, None, None] & (o_part < d)[None, :, :],
            other=-float("inf"),
        ).to(TYPE)
        b_part = tilt(tl.max(b_part, 1), finite(top, TYPE), c, TYPE)
        rise = _start(b_part, least, shortest, ready, r, START, KIND)
    rise, rest = _block_root(b_tilt, rise, least, shortest, ready, r, 100, POWER, KIND)
    b_y = solution_power(b_tilt, rise, rest, out, OUT)
    total = row_sum(b_y)
    if KIND == ENTMAX:
        # Where entries joined the support in the last step, or many are small.
        is_off, steps = _is_off(total, ready, RESOLUTION, POWER), 0
        while (steps < 16) & (tl.max(is_off.to(tl.int32), 0) > 0):
            b_power, b_slope = _slopes(b_tilt, rise, rest, r, POWER)
            moved, low = correct(row_sum(b_power), row_sum(b_slope), rise, rest, r)
            rise, rest = tl.where(is_off, moved, rise), tl.where(is_off, low, rest)
            b_y = solution_power(b_tilt, rise, rest, out, OUT)
            total = row_sum(b_y)
            is_off = _is_off(total, ready, RESOLUTION, POWER)
            steps += 1
    if POWER > 0 and D > 256:
        # Computed again, since the registers do not hold it through the loop.
        b_y = solution_power(b_tilt, rise, rest, out, OUT)
    moment = tl.sum(tl.where(b_y > 0, b_y * b_tilt, 0.0), 1) if STATE else rise
    share = _finalize_rows(
        p_value, p_state, o_row, m_row, top, rise, rest, total, moment, b_parameter, c, STATE
    )
    if WRITE:
        b_y = rounded(b_y * share[:, None], p_y.dtype.element_ty)
        tl.store(p_y + o_row[:, None] * d + o_column[None, :], b_y, mask=m_entry)


@triton.jit
def _three_terms(b_first, b_second, b_third, rise, r, POWER: tl.constexpr, KIND: tl.constexpr):
    """The three sums over the three largest of all slices, (1,) each."""
    at0, second0, third0 = power_terms(b_first, rise, r, POWER, KIND)
    at1, second1, third1 = power_terms(b_second, rise, r, POWER, KIND)
    at2, second2, third2 = power_terms(b_third, rise, r, POWER, KIND)
    return row_sums(at0 + at1 + at2, second0 + second1 + second2, third0 + third1 + third2)


@triton.jit
def _three_slopes(b_first, b_second, b_third, rise, rest, r, POWER: tl.constexpr):
    """The sums of these over the three largest of all slices, (1,) each in float64."""
    total0, slope0 = _slopes(b_first, rise, rest, r, POWER)
    total1, slope1 = _slopes(b_second, rise, rest, r, POWER)
    total2, slope2 = _slopes(b_third, rise, rest, r, POWER)
    total, slope = total0 + total1 + total2, slope0 + slope1 + slope2
    return tl.sum(total.to(tl.float64), 1), tl.sum(slope.to(tl.float64), 1)


@triton.jit
def _row_terms(
    p_row, top, rise, c, r, d, POWER: tl.constexpr, KIND: tl.constexpr, TYPE: tl.constexpr,
    M: tl.constexpr,
):  # fmt: skip
    """The three sums over a whole row, (1,) each in float64, reading it again."""
    o_column = tl.arange(0, M)[None, :]
    b_at = tl.zeros([1, M], tl.float64)  # a sum of as many terms as there are tiles
    b_second, b_third = b_at, b_at
    for start in range(0, d, M):
        o = start + o_column
        # (1, M)
        b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(TYPE)
        at, second, third = power_terms(tilt(b_x, top, c, TYPE), rise, r, POWER, KIND)
        b_at, b_second, b_third = b_at + at, b_second + second, b_third + third
    return row_sums(b_at, b_second, b_third)


@triton.jit
def _row_masses(
    p_row, top, rise, rest, c, out, d, OUT: tl.constexpr, TYPE: tl.constexpr, M: tl.constexpr
):
    """The sums over a whole row of what y is proportional to, of that times t, and of that over u,
    (1,) each in float64, reading it again."""
    o_column = tl.arange(0, M)[None, :]
    b_total = tl.zeros([1, M], tl.float64)
    b_rounded, b_moment, b_slope = b_total, b_total, b_total
    for start in range(0, d, M):
        o = start + o_column
        # (1, M)
        b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(TYPE)
        b_tilt = tilt(b_x, top, c, TYPE)
        b_y, b_part = _slopes(b_tilt, rise, rest, out, OUT)
        b_term = b_y.to(tl.float64) - b_rounded  # the sum as if in twice the precision
        b_sum = b_total + b_term
        b_rounded = (b_sum - b_total) - b_term
        b_total = b_sum
        b_moment += tl.where(b_y > 0, b_y * b_tilt, 0.0)
        b_slope += b_part
    return tl.sum(b_total, 1), tl.sum(b_moment, 1), tl.sum(b_slope, 1)


@triton.jit
def long_forward_kernel(
    p_x, p_y, p_value, p_state, p_parameter,
    parameter: tl.float64, c: tl.float64, r: tl.float64, out: tl.float64,
    least: tl.float64, shortest: tl.float64, n, d, stride,
    KIND: tl.constexpr, POWER: tl.constexpr, OUT: tl.constexpr, START: tl.constexpr,
    PER_ROW: tl.constexpr, EXACT: tl.constexpr, WRITE: tl.constexpr, STATE: tl.constexpr,
    RESOLUTION: tl.constexpr, ROUNDING: tl.constexpr, TYPE: tl.constexpr,
    M: tl.constexpr, READS: tl.constexpr, WRITES: tl.constexpr,
):  # fmt: skip
    """One row per program. The first read keeps the three largest of each of M strided slices. If
    no third is in the support that these give, nothing else is; if one is, it is read again. The
    cache is asked to keep what was read until it is read for the last time."""
    N: tl.constexpr = M // 4  # sums in float64 would fill the registers at full width
    o_row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    m_row = o_row < n
    b_parameter, c, r, out, least, shortest = row_constants(
        p_parameter, parameter, c, r, out, least, shortest, o_row, m_row, d,
        RESOLUTION, ROUNDING, PER_ROW, KIND, TYPE,
    )  # fmt: skip
    if PER_ROW:
        m_row = m_row & (((b_parameter > 2) | (b_parameter < 1)) == EXACT)
    if tl.max(m_row.to(tl.int32), 0) > 0:
        p_row = p_x + o_row[:, None] * stride
        o_column = tl.arange(0, M)[None, :]
        b_first = tl.full([1, M], -float("inf"), TYPE)
        b_second, b_third = b_first, b_first
        for start in range(0, d, M * READS):
            for k in tl.static_range(READS):
                o = start + k * M + o_column
                # (1, M)
                b_x = tl.load(
                    p_row + o, mask=o < d, other=-float("inf"), eviction_policy="evict_last"
                ).to(TYPE)
                b_third = tl.maximum(b_third, tl.minimum(b_second, b_x))
                b_second = tl.maximum(b_second, tl.minimum(b_first, b_x))
                b_first = tl.maximum(b_first, b_x, propagate_nan=tl.PropagateNan.ALL)

        top = _checked_top(row_max(b_first), b_parameter, KIND)
        ready = (top == -float("inf")) | (top != top)
        peak = finite(top, TYPE)
        b_first = tilt(b_first, peak, c, TYPE)
        b_second = tilt(b_second, peak, c, TYPE)
        b_third = tilt(b_third, peak, c, TYPE)
        rise = _start(b_first, least, shortest, ready, r, START, KIND)
        low, high, kept, done, steps = least, least * 0, least * 0, ready, 0
        while (steps < 100) & (tl.min(done.to(tl.int32), 0) == 0):
            at, second, third = _three_terms(b_first, b_second, b_third, rise, r, POWER, KIND)
            rise, kept, low, high, done = advance(
                at, second, third, rise, kept, low, high, shortest, done, r, POWER, KIND
            )
            steps += 1
        rest = rest_after(rise, kept, POWER)
        # With a margin for the corrections below.
        hidden = tl.max(tl.max((rise[:, None] + b_third > -1 - 1e-5).to(tl.int32), 1), 0) > 0
        if hidden:
            low, high, kept, done, steps = least, least * 0, least * 0, ready, 0
            while (steps < 100) & (tl.min(done.to(tl.int32), 0) == 0):
                at, second, third = _row_terms(p_row, peak, rise, c, r, d, POWER, KIND, TYPE, N)
                rise, kept, low, high, done = advance(
                    at.to(TYPE), second.to(TYPE), third.to(TYPE), rise, kept, low, high, shortest,
                    done, r, POWER, KIND,
                )  # fmt: skip
                steps += 1
            rest = rest_after(rise, kept, POWER)
            total, moment, slope = _row_masses(p_row, peak, rise, rest, c, out, d, OUT, TYPE, N)
            if KIND == ENTMAX:
                steps = 0
                while (steps < 16) & (
                    tl.max(_is_off(total, ready, RESOLUTION, POWER).to(tl.int32), 0) > 0
                ):
                    rise, rest = correct(total, slope, rise, rest, r)
                    total, moment, slope = _row_masses(
                        p_row, peak, rise, rest, c, out, d, OUT, TYPE, N
                    )
                    steps += 1
        else:
            b_y0 = solution_power(b_first, rise, rest, out, OUT)
            b_y1 = solution_power(b_second, rise, rest, out, OUT)
            b_y2 = solution_power(b_third, rise, rest, out, OUT)
            total = tl.sum((b_y0 + b_y1 + b_y2).to(tl.float64), 1)
            b_moment = tl.where(b_y0 > 0, b_y0 * b_first, 0.0).to(tl.float64)
            b_moment += tl.where(b_y1 > 0, b_y1 * b_second, 0.0)
            b_moment += tl.where(b_y2 > 0, b_y2 * b_third, 0.0)
            moment = tl.sum(b_moment, 1)
            if KIND == ENTMAX:
                # Where entries joined the support in the last step, or many are small.
                steps = 0
                while (steps < 16) & (
                    tl.max(_is_off(total, ready, RESOLUTION, POWER).to(tl.int32), 0) > 0
                ):
                    total, slope = _three_slopes(b_first, b_second, b_third, rise, rest, r, POWER)
                    rise, rest = correct(total, slope, rise, rest, r)
                    total, _ = _three_slopes(b_first, b_second, b_third, rise, rest, r, POWER)
                    steps += 1
        share = _finalize_rows(
            p_value, p_state, o_row, m_row, top, rise, rest, total.to(TYPE), moment.to(TYPE),
            b_parameter, c, STATE,
        )  # fmt: skip
        if WRITE:
            for start in range(0, d, M * WRITES):
                for k in tl.static_range(WRITES):
                    o = start + k * M + o_column
                    # (1, M)
                    b_x = tl.load(
                        p_row + o, mask=o < d, other=-float("inf"), eviction_policy="evict_first"
                    ).to(TYPE)
                    b_w = solution_power(tilt(b_x, peak, c, TYPE), rise, rest, out, OUT)
                    b_w = rounded(b_w * share[:, None], p_y.dtype.element_ty)
                    tl.store(
                        p_y + o_row[:, None] * d + o, b_w, mask=o < d, eviction_policy="evict_first"
                    )
