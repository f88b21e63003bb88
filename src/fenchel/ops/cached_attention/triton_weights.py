"""Cached attention on a GPU, second part: the thresholds of stored scores, and the values.

1. `page_threshold_kernel` solves one row. The largest scores of its pages have a threshold that is
   at most the row's, so only pages with a larger score count.
2. `page_values_kernel` marks the keys of a chunk that have weight for a query of the group. Where
   these are few, it reads their values alone; where they are many, all of the chunk, as they lie.
3. `page_output_kernel` adds the chunks up, in their order.
"""

import triton
import triton.language as tl

from .._triton.root import larger, row_max
from ..attention.triton_forward import HALF_SCALE, halves
from ..attention.triton_passes import MAX_PASSES, keep_largest
from ..attention.triton_scores import SINKS, dot, load_parameters
from ..attention.triton_threshold import (
    ANY,
    LARGEST,
    advance,
    lessen,
    merge_moments,
    moments,
    narrow,
    subset_base,
    sum_terms,
    terms,
    weights_tile,
)
from .triton_pages import PAGE, group_rows


@triton.jit
def sink_of(parameters, FEATURES: tl.constexpr):
    """x of the sink of each row, (M, 1); −inf without one."""
    b_alpha, b_gamma, _, _, b_sink = parameters
    if SINKS & FEATURES:
        return ((b_alpha - 1) / b_gamma * b_sink)[:, None]
    else:
        return (tl.zeros_like(b_sink) - float("inf"))[:, None]


@triton.jit
def stored_moments(
    p_scores, p_list, count, b_sink, peak, base, rest, alpha,
    KIND: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """The moments of a row, (1,) each, over its sink and `count` listed pages."""
    o, o_key = tl.arange(0, NP), tl.arange(0, PAGE)[None, :]
    b_none = tl.full([1, NP * PAGE], -float("inf"), tl.float32)
    all_terms = terms(b_none, base[:, None], rest[:, None], alpha[:, None], KIND)
    for c in range(0, count, NP):
        b_page = tl.load(p_list + c + o, mask=c + o < count, other=0)
        p_tile = p_scores + b_page[:, None] * PAGE + o_key
        # (NP, PAGE)
        b_x = tl.load(p_tile, mask=(c + o < count)[:, None], other=-float("inf"))
        b_t = tl.reshape(b_x, [1, NP * PAGE]) - peak[:, None]
        more = terms(b_t, base[:, None], rest[:, None], alpha[:, None], KIND)
        all_terms = merge_moments(all_terms, more, KIND)
    sums = moments(b_sink, base, rest, alpha, KIND)
    return merge_moments(sums, sum_terms(all_terms, KIND), KIND)


@triton.jit
def sampled_base(
    p_scores, p_list, count, b_sink, peak, base, least, done, alpha, n,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """About the base of a row, (1,): that of NP of its `count` listed pages, spread evenly. Each of
    them stands for its share of all."""
    o = tl.arange(0, NP)
    b_page = tl.load(p_list + (o.to(tl.int64) * count // NP))
    # (NP, PAGE)
    b_x = tl.load(p_scores + b_page[:, None] * PAGE + tl.arange(0, PAGE)[None, :])
    b_t = tl.reshape(b_x, [1, NP * PAGE]) - peak[:, None]
    share = count / NP
    rest, low, high, solved, steps = base * 0, least, base, done, 0
    while (steps < MAX_PASSES) & (tl.min(solved.to(tl.int32), 0) == 0):
        first, second, third = moments(b_t, base, rest, alpha, KIND)
        third = third if KIND == ANY else third * share
        sums = merge_moments(
            moments(b_sink, base, rest, alpha, KIND), (first * share, second * share, third), KIND
        )
        base, rest, low, high, solved = advance(
            sums, base, rest, low, high, solved, alpha, n, TOLERANCE, KIND
        )
        steps += 1
    return base


@triton.jit(do_not_specialize=["P"])
def page_threshold_kernel(
    p_scores, p_peaks, p_rows, p_list, p_state, alpha, gamma, scale, S, P, n,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, BP: tl.constexpr,
    NP: tl.constexpr,
):  # fmt: skip
    """The state (3, n) of each row as the forward kernel of attention keeps it: the largest x, and
    base and rest. NaN where a score is."""
    o_row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    row = tl.program_id(0).to(tl.int64)
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha = parameters[0]
    b_sink = sink_of(parameters, FEATURES)
    p_peaks += row * P
    p_scores += row * P * PAGE
    p_list += row * P
    o = tl.arange(0, BP)
    b_first = tl.full([1, BP], -float("inf"), tl.float32)
    b_second = b_first
    for c in range(0, P, BP):
        b_x = tl.load(p_peaks + c + o, mask=c + o < P, other=-float("inf"))[None, :]
        b_first, b_second = keep_largest(b_first, b_second, b_x)
    top = larger(row_max(b_first), tl.sum(b_sink, 1))
    is_empty, is_infinite = top == -float("inf"), top == float("inf")
    done = is_empty | is_infinite | (top != top)
    peak = tl.where(is_empty, 0.0, tl.where(is_infinite, LARGEST, top))
    b_sink -= peak[:, None]
    least = tl.exp((1 - b_alpha) * tl.log(S + 1.0)) * (1 - 1e-3)
    base = subset_base(
        b_first - peak[:, None], b_second - peak[:, None], b_sink, least, b_alpha, done, S + 1.0,
        TOLERANCE, KIND,
    )  # fmt: skip
    base = tl.where(done, tl.where(is_infinite, 1.0, 0.0), base)

    # The base is right to less than this, so the other pages have no weight.
    limit = peak - base * (1 + 2.0**-10)
    count = 0
    for c in range(0, P, BP):
        b_x = tl.load(p_peaks + c + o, mask=c + o < P, other=-float("inf"))
        b_kept = (b_x > limit).to(tl.int32)
        tl.store(p_list + count + tl.cumsum(b_kept, 0) - 1, c + o, mask=b_kept > 0)
        count += tl.sum(b_kept, 0)
    tl.debug_barrier()

    rest, low, high, solved, steps = base * 0, least, base * 0 + 1, done, 0
    if KIND == ANY:
        solved = solved | (b_alpha > 2)
    if count > NP:
        base = sampled_base(
            p_scores, p_list, count, b_sink, peak, base, least, solved, b_alpha, S + 1.0,
            TOLERANCE, KIND, NP,
        )  # fmt: skip
    while (steps < MAX_PASSES) & (tl.min(solved.to(tl.int32), 0) == 0):
        sums = stored_moments(p_scores, p_list, count, b_sink, peak, base, rest, b_alpha, KIND, NP)
        base, rest, low, high, solved = advance(
            sums, base, rest, low, high, solved, b_alpha, S + 1.0, TOLERANCE, KIND
        )
        steps += 1
    if KIND == ANY:
        steep = ~done & (b_alpha > 2)
        zero = base * 0
        trial, low, high, farthest = base, zero, zero + 1, zero + 1
        found, walked, steps = ~steep, done & ~done, 0
        while (steps < 2 * MAX_PASSES) & (tl.min(found.to(tl.int32), 0) == 0):
            sums = stored_moments(
                p_scores, p_list, count, b_sink, peak, trial, zero, b_alpha, KIND, NP
            )
            trial, low, high, farthest, walked, found = narrow(
                sums, trial, low, high, farthest, walked, found
            )
            steps += 1
        weight, settled, steps = zero + 1, ~steep, 0
        while (steps < MAX_PASSES) & (tl.min(settled.to(tl.int32), 0) == 0):
            sums = stored_moments(
                p_scores, p_list, count, b_sink, peak, farthest, weight, b_alpha, KIND, NP
            )
            weight, settled = lessen(sums, weight, settled)
            steps += 1
        base, rest = tl.where(steep, farthest, base), tl.where(steep, weight, rest)
    tl.store(p_state + o_row, tl.where(top == top, peak, top))
    tl.store(p_state + n + o_row, base)
    tl.store(p_state + 2 * n + o_row, rest)


@triton.jit
def load_state(p_state, o_row, n):
    """The largest x, base and rest of rows."""
    return tl.load(p_state + o_row), tl.load(p_state + n + o_row), tl.load(p_state + 2 * n + o_row)


@triton.jit
def add_values(b_sum, b_p, b_value):
    """b_sum + vᵀ p of p (BM, BN) and v (BN, BE). This way around tensor cores take the values from
    shared memory.

    It is (BE, BM), and in half precision (BE, 2 BM) with neighbours that add up, since weights go
    in two halves; they are rounded and added up like those of `add_weighted`.
    """
    if b_value.dtype == tl.float32:  # without tensor cores this takes fewer registers
        return tl.trans(dot(b_p, b_value, tl.trans(b_sum)))
    else:
        b_p, b_value = tl.trans(b_p), tl.trans(b_value)
        if b_value.dtype == tl.float16:
            b_p *= HALF_SCALE
        b_high, b_low = halves(b_p, b_value.dtype)
        b_halves = tl.join(b_high, b_low).to(b_value.dtype)
        b_halves = tl.reshape(b_halves, [b_p.shape[0], 2 * b_p.shape[1]])
        if b_value.dtype == tl.float16:
            b_sum += dot(b_value, b_halves, tl.zeros_like(b_sum))
            return b_sum
        else:
            return dot(b_value, b_halves, b_sum)


@triton.jit
def weighted_values(
    p_scores, p_value, p_keys, first, count, rows, value_s,
    LISTED: tl.constexpr, KIND: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """Σ p, (BM,), and Σ v p, (BE, BM), of `count` keys: listed ones, or those from the first on."""
    IS_HALF: tl.constexpr = p_value.dtype.element_ty != tl.float32
    o_score, m_row, b_alpha, peak, base, rest = rows
    b_total = tl.zeros([BM, BN], tl.float32)
    b_sum = tl.zeros([BE, 2 * BM if IS_HALF else BM], tl.float32)
    o_e = tl.arange(0, BE)[None, :]
    for c in range(0, count, BN):
        o_key = first + c + tl.arange(0, BN)
        m_key = o_key < first + count
        m_score = m_row[:, None]  # behind the last key scores are −inf, up to the end of its page
        if LISTED:
            o_key = tl.load(p_keys + o_key, mask=m_key, other=0)
            m_score = m_score & m_key[None, :]
        p_tile = p_scores + o_score[:, None] + o_key[None, :]
        # (BM, BN)
        b_x = tl.load(p_tile, mask=m_score, other=-float("inf") if LISTED else 0.0)
        b_t = b_x - peak[:, None]
        b_p = weights_tile(b_t, base[:, None], rest[:, None], b_alpha, KIND)[0]
        b_total += b_p
        p_tile = p_value + o_key.to(tl.int64)[:, None] * value_s + o_e
        # (BN, BE)
        b_value = tl.load(p_tile, mask=m_key[:, None] & (o_e < E), other=0.0)
        b_sum = add_values(b_sum, b_p, b_value)
    if IS_HALF:
        b_sum = tl.sum(tl.reshape(b_sum, [BE, BM, 2]), 2)
    return tl.sum(b_total, 1), b_sum


@triton.jit
def mark_keys(p_scores, p_peaks, p_state, o_key, first, rows, P, n, SIZE: tl.constexpr):
    """Which keys have weight for one of the rows from the first on, and which have scores, 0 or 1,
    (SIZE,) each."""
    o_page = o_key // PAGE
    b_marked = tl.zeros([SIZE], tl.int32)
    b_scored = b_marked
    for row in range(first, first + rows):
        peak, base, _ = load_state(p_state, row, n)
        b_peak = tl.load(p_peaks + row * P + o_page, mask=o_page < P, other=-float("inf"))
        m_page = (b_peak - peak) + base >= 0
        b_x = tl.load(p_scores + row * P * PAGE + o_key, mask=m_page, other=-float("inf"))
        b_marked = b_marked | ((b_x - peak) + base >= 0).to(tl.int32)
        b_scored = b_scored | (b_peak != -float("inf")).to(tl.int32)
    return b_marked, b_scored


@triton.jit(do_not_specialize=["S", "P"])
def page_values_kernel(
    p_scores, p_peaks, p_value, p_rows, p_state, p_keys, p_parts, p_totals,
    alpha, gamma, scale, heads, groups, T, S, P, n, value_b, value_g, value_s,
    KIND: tl.constexpr, FEATURES: tl.constexpr, E: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ p v and Σ p over a chunk of CHUNK pages, (n, chunks, E) and (n, chunks). The first is not
    written where the second is 0 for all queries of the group.

    Where most keys have weight, those without are read, too. If one of their values is not finite,
    the sum is not, and the others are read alone.
    """
    chunks = tl.cdiv(P, CHUNK)
    chunk = tl.program_id(0) % chunks
    g = (tl.program_id(0) // chunks % groups).to(tl.int64)
    b = (tl.program_id(0) // chunks // groups).to(tl.int64)
    repeat = heads // groups
    SIZE: tl.constexpr = CHUNK * PAGE
    o_key = chunk * SIZE + tl.arange(0, SIZE)
    first = (b * heads + g * repeat) * T
    b_marked, b_scored = mark_keys(p_scores, p_peaks, p_state, o_key, first, repeat * T, P, n, SIZE)
    count, scored = tl.sum(b_marked, 0), tl.sum(b_scored, 0)

    o_row, _, _, m_row = group_rows(b, g, heads, groups, T, BM)
    b_alpha = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)[0][:, None]
    peak, base, rest = load_state(p_state, o_row, n)
    p_value += b * value_b + g * value_g
    rows = (o_row * P * PAGE, m_row, b_alpha, peak, base, rest)
    total, b_sum = tl.zeros([BM], tl.float32), tl.zeros([BE, BM], tl.float32)
    is_missing = count > 0
    end = tl.minimum(SIZE, S - chunk * SIZE)
    if (2 * count > end) & (scored >= end):
        total, b_sum = weighted_values(
            p_scores, p_value, p_keys, chunk * SIZE, end, rows, value_s, False, KIND, E, BM, BN, BE
        )
        # Not so for NaN and infinity.
        is_missing = tl.min((tl.abs(b_sum) <= LARGEST).to(tl.int32)) == 0
    if is_missing:
        p_keys += ((b * groups + g) * P + chunk * CHUNK) * PAGE
        tl.store(p_keys + tl.cumsum(b_marked, 0) - 1, o_key, mask=b_marked > 0)
        tl.debug_barrier()
        total, b_sum = weighted_values(
            p_scores, p_value, p_keys, 0, count, rows, value_s, True, KIND, E, BM, BN, BE
        )
    o_e = tl.arange(0, BE)[:, None]
    if p_value.dtype.element_ty == tl.float16:
        b_sum *= 1 / HALF_SCALE
    o_part = o_row * chunks + chunk
    tl.store(p_totals + o_part, total, mask=m_row)
    m_part = m_row[None, :] & (o_e < E) & (count > 0)
    tl.store(p_parts + o_part[None, :] * E + o_e, b_sum, mask=m_part)


@triton.jit(do_not_specialize=["chunks"])
def page_output_kernel(
    p_parts, p_totals, p_rows, p_state, p_output, alpha, gamma, scale, chunks, n,
    KIND: tl.constexpr, FEATURES: tl.constexpr, E: tl.constexpr, BE: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The output of one row: the sum of its chunks, divided by the sum of all weights."""
    row = tl.program_id(0).to(tl.int64)
    o_row = row + tl.zeros([1], tl.int64)
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    peak, base, rest = load_state(p_state, o_row, n)
    o_e = tl.arange(0, BE)[None, :]
    b_sum = tl.zeros([BC, BE], tl.float32)
    b_total = tl.zeros([BC], tl.float32)
    for c in range(0, chunks, BC):
        o_part = c + tl.arange(0, BC)
        b_more = tl.load(p_totals + row * chunks + o_part, mask=o_part < chunks, other=0.0)
        b_total += b_more
        m_part = (b_more > 0)[:, None] & (o_e < E)
        p_tile = p_parts + (row * chunks + o_part)[:, None] * E + o_e
        # (BC, BE)
        b_sum += tl.load(p_tile, mask=m_part, other=0.0)
    b_t = sink_of(parameters, FEATURES) - peak[:, None]
    b_p, _ = weights_tile(b_t, base[:, None], rest[:, None], parameters[0][:, None], KIND)
    total = tl.sum(b_total, 0) + tl.sum(b_p, 1)
    share = tl.where(total > 0, 1 / total, 0.0)
    share = tl.where(peak == peak, share, float("nan"))
    b_output = tl.sum(b_sum, 0)[None, :] * share[:, None]
    p_output += row * E + o_e
    tl.store(p_output, b_output.to(p_output.dtype.element_ty), mask=o_e < E)
