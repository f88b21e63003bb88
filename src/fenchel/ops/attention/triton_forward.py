"""The forward kernel of fused attention: scores are computed anew in every pass, and never stored.

1. A threshold to start from: that of the two largest scores of each column of tiles, which a first
   pass keeps. It is at most that of the row, and close to it.
2. Passes over the complete rows sum, and move their thresholds, until these are near. If STARTED,
   `near_kernel` has done so.
3. A pass that sums and weighs the values too: Σ p v, and Σ w v with the derivatives w = p^(2−α) of
   the weights. It is the last one if the step that its sums ask for is certain to leave every row
   of the block with a sum of 1 up to TOLERANCE, which the output cannot show. Up to that the step
   changes the output by a multiple of Σ w v. So a threshold is that of the complete row, not of a
   guess. Where α differs from row to row, steps end before the values are weighed.
"""

import triton
import triton.language as tl

from .._triton.root import larger, row_max
from .triton_passes import (
    MAX_PASSES,
    add_terms,
    key_distances,
    largest_scores,
    no_terms,
    row_moments,
    steep_root,
    sum_rows,
)
from .triton_scores import (
    BLOCK,
    DROPOUT,
    HAS_MASK,
    SINKS,
    dot,
    edge_tile,
    finite,
    is_chosen,
    kept_tile,
    key_ranges,
    load_parameters,
    load_queries,
    load_row_tile,
    load_tile,
    locate,
    narrow_dot,
    own_blocks,
    store_tile,
)
from .triton_threshold import (
    ANY,
    LARGEST,
    LINEAR,
    QUADRATIC,
    advance,
    is_near,
    merge_moments,
    moments,
    partial_sums,
    power_of,
    subset_base,
    terms,
    weights_tile,
)

HALF_SCALE = tl.constexpr(2.0**14)
"""Weights in float16 are multiplied by so much, or their lower halves would underflow."""


@triton.jit
def halves(b_x, dtype: tl.constexpr):
    """x as the sum of two numbers, of which the first has no more digits than a type of half
    precision. It is cut, not rounded: that takes fewer instructions."""
    CUT: tl.constexpr = -(1 << 13) if dtype == tl.float16 else -(1 << 16)
    b_high = (b_x.to(tl.int32, bitcast=True) & CUT).to(tl.float32, bitcast=True)
    return b_high, b_x - b_high


@triton.jit
def add_in_halves(b_sum, b_x, b_other):
    """b_sum + x b, where x goes in two halves if b is in half precision, because one would round
    it. Tensor cores cut off digits of what they add up; over thousands of keys float16 shows that,
    so there they add up one tile only."""
    b_high, b_low = halves(b_x, b_other.dtype)
    b_high, b_low = b_high.to(b_other.dtype), b_low.to(b_other.dtype)
    if b_other.dtype == tl.float16:
        b_zero = tl.zeros_like(b_sum)
        b_sum += dot(b_low, b_other, dot(b_high, b_other, b_zero))
        return b_sum
    else:
        return dot(b_low, b_other, dot(b_high, b_other, b_sum))


@triton.jit
def add_weighted(b_sum, b_p, b_value, NARROW: tl.constexpr = False):
    """b_sum + p v, in units of 1/HALF_SCALE in float16."""
    if b_value.dtype == tl.float32:
        return narrow_dot(b_p, b_value, b_sum) if NARROW else dot(b_p, b_value, b_sum)
    else:
        if b_value.dtype == tl.float16:
            b_p *= HALF_SCALE
        return add_in_halves(b_sum, b_p, b_value)


@triton.jit
def add_infinite(b_sum, b_p, b_value):
    """b_sum, and NaN where a key with weight has a value that is not finite."""
    b_bad = tl.where(tl.abs(b_value.to(tl.float32)) < float("inf"), 0.0, 1.0).to(b_value.dtype)
    if tl.max(tl.max(b_bad.to(tl.float32), 1), 0) > 0:
        b_count = dot(tl.where(b_p > 0, 1.0, 0.0).to(b_value.dtype), b_bad, tl.zeros_like(b_sum))
        b_sum = tl.where(b_count > 0, float("nan"), b_sum)
    return b_sum


@triton.jit
def weigh_tile(
    b_sum, b_mean, sums, b_query, tile, top, base, rest, alpha, keys, rows, values, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Σ p v and Σ w v, and partial sums of `terms`, with one more tile."""
    p_value, value_stride, S = values
    IS_HALF: tl.constexpr = b_query.dtype != tl.float32
    b_t = key_distances(b_query, tile, top, keys, rows, softcap, EDGE, FEATURES, D, BN, BD)
    if KIND == ANY:
        b_p, b_w = weights_tile(b_t, base[:, None], rest[:, None], alpha[:, None], KIND)
        sums = (sums[0] + partial_sums(b_p, IS_HALF), sums[1], sums[2])
    else:
        b_p, b_w, b_third = terms(b_t, base[:, None], rest[:, None], alpha[:, None], KIND)
        sums = add_terms(sums, (b_p, b_w, b_third), KIND, IS_HALF)
    if DROPOUT & FEATURES:
        seed, o_pair, dropout = noise
        b_kept = kept_tile(seed, o_pair + tile * BN + tl.arange(0, BN)[None, :], dropout)
        b_p, b_w = b_p * b_kept, b_w * b_kept
    # (BN, BE)
    b_value = load_tile(p_value, tile * BN, value_stride, S, EDGE, E, BN, BE)
    if EDGE or HAS_MASK & FEATURES:
        b_sum = add_infinite(b_sum, b_p, b_value)
        b_value = finite(b_value)
    if KIND != ANY:
        if b_value.dtype == tl.float16:
            b_w *= HALF_SCALE
        b_mean = dot(b_w.to(b_value.dtype), b_value, b_mean)
    return add_weighted(b_sum, b_p, b_value), b_mean, sums


@triton.jit
def weigh(
    b_query, b_sink, top, base, rest, alpha, keys, rows, values, noise, ranges, softcap,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Σ p v and Σ w v of the complete rows, (BM, BE) each, and their moments; of ANY only Σ p v
    and Σ p."""
    inner, inner_end, begin, before, edges = ranges
    b_sum = tl.zeros([BM, BE], tl.float32)
    b_mean, sums = b_sum, no_terms(BM, b_query.dtype != tl.float32)
    for i in range(inner, inner_end):
        b_sum, b_mean, sums = weigh_tile(
            b_sum, b_mean, sums, b_query, i, top, base, rest, alpha, keys, rows, values, noise,
            softcap, False, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    for i in range(edges):
        b_sum, b_mean, sums = weigh_tile(
            b_sum, b_mean, sums, b_query, edge_tile(i, begin, before, inner_end), top, base, rest,
            alpha, keys, rows, values, noise,
            softcap, True, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    if values[0].dtype.element_ty == tl.float16:
        b_sum *= 1 / HALF_SCALE
        b_mean *= 1 / HALF_SCALE
    more = moments(b_sink, base, rest, alpha, KIND)
    return b_sum, b_mean, merge_moments(sum_rows(sums), more, KIND)


@triton.jit
def shifts_mean(step, base, sums, alpha, KIND: tl.constexpr):
    """Whether a step changes the mean under w by more than half precision shows, and is more than
    rounding: by the step times Σ w' / Σ w, where w' is the derivative of w."""
    size = tl.abs(step)
    is_long = size > 2.0**-22 * base
    if KIND == LINEAR:
        return is_long & (step != step)
    elif KIND == QUADRATIC:
        return is_long & (size * sums[2] > 2.0**-11 * sums[1])
    else:
        return is_long & (size * (1 / (alpha - 1) - 1) * sums[1] > 2.0**-11 * sums[0])


@triton.jit
def forward_block(
    b, h, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_output, p_tau, p_state, p_mean, alpha, gamma, scale, softcap, dropout, heads, groups, T, S,
    n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g, value_s, starts_b,
    stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, STARTED: tl.constexpr, D:
    tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE:
    tl.constexpr,
):  # fmt: skip
    """Output, threshold and state of BM queries of one head."""
    g = h // (heads // groups)
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)  # the last query again, past the end
    o_row = (b * heads + h) * T + o_t
    p_starts += b * starts_b
    p_stops += b * stops_b
    ranges = key_ranges(p_starts, p_stops, block * BM, tl.minimum(block * BM + BM, T) - 1, BN)
    # (BM,) each
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha, b_gamma, _, _, b_sink = parameters
    if HAS_MASK & FEATURES:
        p_mask += b * mask_b + h * mask_h
    rows = load_queries(
        parameters, p_starts, p_stops, p_diagonal + b * diagonal_b, p_mask, o_t, o_t < T, mask_t,
        1, FEATURES,
    )  # fmt: skip
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    # (BM, BD)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    if SINKS & FEATURES:
        b_sink = ((b_alpha - 1) / b_gamma * b_sink)[:, None]
    else:
        b_sink = tl.full([BM, 1], -float("inf"), tl.float32)

    # A threshold to start from.
    if STARTED:
        top = tl.load(p_state + o_row)
        base = tl.load(p_state + n + o_row)
    else:
        b_first, b_second = largest_scores(
            b_query, keys, rows, ranges, softcap, FEATURES, D, BM, BN, BD
        )
        top = larger(row_max(b_first), tl.sum(b_sink, 1))
    is_empty, is_infinite = top == -float("inf"), top == float("inf")
    done = is_empty | is_infinite | (top != top)
    # Finite, so that differences are defined.
    peak = tl.where(is_empty, 0.0, tl.where(is_infinite, LARGEST, top))
    b_sink -= peak[:, None]
    least = tl.exp((1 - b_alpha) * tl.log(S + 1.0)) * (1 - 1e-3)
    if not STARTED:
        b_first, b_second = b_first - peak[:, None], b_second - peak[:, None]
        base = subset_base(
            b_first, b_second, b_sink, least, b_alpha, done, S + 1.0, TOLERANCE, KIND
        )
    base = tl.where(done, tl.where(is_infinite, 1.0, 0.0), base)

    # The threshold of the complete rows.
    rest, low, high, near, steps = base * 0, least, base * 0 + 1, done, 0
    if KIND == ANY:
        near = near | (b_alpha > 2)
    if KIND == ANY or not STARTED:
        while (steps < MAX_PASSES) & (tl.min(near.to(tl.int32), 0) == 0):
            sums = row_moments(
                b_query, b_sink, peak, base, rest, b_alpha, keys, rows, ranges, softcap,
                KIND, FEATURES, D, BN, BD,
            )  # fmt: skip
            base, rest, low, high, near = advance(
                sums, base, rest, low, high, near, b_alpha, S + 1.0, TOLERANCE, KIND
            )
            if KIND != ANY:
                near = near | is_near(sums[0], b_alpha)
            steps += 1
    tau = peak - base - rest
    if KIND == ANY:
        steep = ~done & (b_alpha > 2)
        far, weight = steep_root(
            b_query, b_sink, peak, base, ~steep, b_alpha, keys, rows, ranges, softcap,
            KIND, FEATURES, D, BN, BD,
        )  # fmt: skip
        base, rest = tl.where(steep, far, base), tl.where(steep, weight, rest)
        tau = tl.where(steep, peak - base - power_of(rest, b_alpha - 1), tau)

    # The weights and the values.
    values = (p_value + b * value_b + g * value_g, value_s, S)
    noise = (0, 0, 0.0)
    if DROPOUT & FEATURES:
        noise = (tl.load(p_seed), (o_row * S)[:, None], dropout)
    if KIND == ANY:
        b_sum, b_mean, sums = weigh(
            b_query, b_sink, peak, base, rest, b_alpha, keys, rows, values, noise, ranges, softcap,
            KIND, FEATURES, D, E, BM, BN, BD, BE,
        )  # fmt: skip
        total = sums[0]
    else:
        b_sum = tl.zeros([BM, BE], tl.float32)
        b_mean, sums, change, is_open = b_sum, (base, base, base), rest, 1
        for _ in range(MAX_PASSES):
            if is_open > 0:
                b_sum, b_mean, sums = weigh(
                    b_query, b_sink, peak, base, rest, b_alpha, keys, rows, values, noise, ranges,
                    softcap, KIND, FEATURES, D, E, BM, BN, BD, BE,
                )  # fmt: skip
                moved, rest, low, high, solved = advance(
                    sums, base, rest, low, high, done, b_alpha, S + 1.0, TOLERANCE, KIND
                )
                change = moved - base
                if b_query.dtype != tl.float32:
                    solved = solved & ~shifts_mean(change, base, sums, b_alpha, KIND)
                is_open = tl.max((~done & ~solved).to(tl.int32), 0)
                base = moved
        # To first order a weight changes by r w times the change of the base.
        change = change / (b_alpha - 1)
        b_sum += change[:, None] * b_mean
        total = sums[0] + change * sums[1]
        tau = peak - base
    share = tl.where(total > 0, 1 / total, 0.0)
    share = tl.where(top == top, share, float("nan"))
    m_row = block * BM + tl.arange(0, BM) < T
    b_sum = (b_sum * share[:, None]).to(p_output.dtype.element_ty)
    store_tile(p_output, b_sum, o_row, m_row, E, BE)
    if p_mean is not None and KIND != ANY:
        b_mean *= tl.where(sums[1] > 0, 1 / sums[1], 0.0)[:, None]
        store_tile(p_mean, b_mean - b_sum.to(tl.float32), o_row, m_row, E, BE)
    tl.store(p_tau + o_row, tl.where(is_empty, float("inf"), tau), mask=m_row)
    tl.store(p_state + o_row, tl.where(top == top, peak, top), mask=m_row)
    tl.store(p_state + n + o_row, base, mask=m_row)
    tl.store(p_state + 2 * n + o_row, rest, mask=m_row)


@triton.jit
def attention_forward_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_output, p_tau, p_state, p_mean, p_dense, p_whole, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, CLASS: tl.constexpr,
    STARTED: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Output, threshold and state of all queries; n is their number. With `p_dense` only of blocks
    that are dense, and of the CLASS. If STARTED the state has a start; `p_mean` gets Σ w v / Σ w
    less the output."""
    blocks = tl.cdiv(T, BM)
    rows = n // T
    first, end = own_blocks(blocks * rows, p_whole, rows // heads * groups)
    for index in range(first, end):
        b, h, place = locate(index, blocks, heads, rows)
        block = blocks - 1 - place  # the longest first, if causal
        if is_chosen(p_dense, (b * heads + h) * tl.cdiv(T, BLOCK) + block * BM // BLOCK, CLASS):
            forward_block(
                b, h, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows,
                p_mask, p_seed, p_output, p_tau, p_state, p_mean, alpha, gamma, scale, softcap,
                dropout, heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s,
                value_b, value_g, value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t,
                mask_s, TOLERANCE, KIND, FEATURES, STARTED, D, E, BM, BN, BD, BE,
            )  # fmt: skip
