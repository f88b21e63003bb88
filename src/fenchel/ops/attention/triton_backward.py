"""The backward kernel of the queries: scores are computed anew from the states of the rows.

With w = p^(2−α) on the support, the gradient of a score is w (dp − Σ w dp / Σ w)/γ. One pass over
the tiles does: the mean comes from the values' mean under w, where that is kept. Else the pass sums
with a guess of the mean, and with w alone for what the guess lacks.

Above α = 2 the smallest weight has the largest w, which would magnify what the mean rounds. So the
guess is dp of that very key, found by a pass of its own: then its difference is zero exactly. What
the guess lacks is small beside such a key, but not among thousands of equal weights, which would
all be rounded the same way; so in half precision they go in two halves.
"""

import triton
import triton.language as tl

from .triton_forward import add_in_halves
from .triton_scores import (
    BLOCK,
    DROPOUT,
    HAS_MASK,
    MASKED,
    SINKS,
    dot,
    edge_tile,
    finite,
    is_chosen,
    key_ranges,
    load_parameters,
    load_queries,
    load_row_tile,
    locate,
    own_blocks,
    store_tile,
)
from .triton_solved import find_least, query_tile
from .triton_threshold import ANY, power_of, weights_tile

ALPHA = tl.constexpr(1)
"""Bits of NEEDS: of which parameters of the rows the gradients are wanted."""
GAMMA = tl.constexpr(2)
SCALE = tl.constexpr(4)
SLOPE = tl.constexpr(8)
SINK = tl.constexpr(16)
PAIRED = tl.constexpr(GAMMA.value + SCALE.value + SLOPE.value)
"""Sums over scores, or the like: they need the mean of dp under w exactly."""


@triton.jit
def alpha_sums(b_p, b_dp, epsilon):
    """The seven sums over each row that <dp, ∂p/∂α> needs, as entmax's own kernel has them."""
    m_in = b_p > 0
    b_a = -tl.log(tl.where(m_in, b_p, 1.0))
    b_t = epsilon * b_a
    m_near = tl.abs(b_t) < 0.3
    b_near = tl.where(m_near, b_t, 0.0)
    b_tail = tl.zeros_like(b_p)
    for k in tl.static_range(8):  # (eᵗ − 1 − t)/t²
        b_tail = (b_tail * b_near + 1.0) / (9 - k)
    b_far = tl.where(m_near, 1.0, b_t)
    b_tail = tl.where(m_near, b_tail, (tl.exp(b_far) - 1.0 - b_far) / (b_far * b_far))
    b_f = b_a * (1 + b_t * b_tail)
    b_g = b_a * b_a * b_tail
    b_w = tl.where(m_in, b_p * b_dp, 0.0)
    return (
        tl.sum(b_p * b_a, 1),
        tl.sum(b_p * b_f, 1),
        tl.sum(b_p * b_g, 1),
        tl.sum(b_w, 1),
        tl.sum(b_w * b_a, 1),
        tl.sum(b_w * b_f, 1),
        tl.sum(b_w * b_g, 1),
    )


@triton.jit
def alpha_gradient(s, epsilon):
    """<dp, ∂p/∂α> from the seven sums."""
    return (s[2] * s[3] - s[6] + s[1] * s[4] - s[0] * s[5]) / (1 + epsilon * s[1])


@triton.jit
def add_all(one, other):
    return (
        one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3],
        one[4] + other[4], one[5] + other[5], one[6] + other[6],
    )  # fmt: skip


@triton.jit
def add_pair(pair, b_dz, b_w, b_x):
    """Σ dz x and Σ w x with one more tile."""
    return pair[0] + tl.sum(b_dz * b_x, 1), pair[1] + tl.sum(b_w * b_x, 1)


@triton.jit
def gradient_tile(
    sums, by_gamma, by_scale, by_slope, by_alpha, guess, b_query, b_grad, tile, keys, values,
    rows, solution, noise, softcap,
    NEEDS: tl.constexpr, IS_NEAR: tl.constexpr, EDGE: tl.constexpr, KIND: tl.constexpr,
    FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """What makes up the gradients of the queries and of the rows' parameters, with one more tile.

    The mean of dp under w is known only after all tiles. So each sum over dz = w (dp − guess) comes
    with the same one over w, a multiple of which `query_block` subtracts. That of the keys is left
    out where the guess is so near that half precision does not show the difference. It shows in
    the gradients of the parameters, where scores that are far from zero would magnify it.
    """
    b_t, b_p, b_w, b_dp, b_dot, b_steepness, b_key = query_tile(
        b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
        EDGE, KIND, FEATURES, D, E, BN, BD, BE,
    )  # fmt: skip
    b_dz = b_w * (b_dp - guess[:, None])
    if EDGE or MASKED & FEATURES:
        b_dz = tl.where(b_t == -float("inf"), 0.0, b_dz)
    if EDGE or HAS_MASK & FEATURES:
        b_key = finite(b_key)
    b_sum, b_other, gap, mass = sums
    b_sum = dot((b_dz * b_steepness).to(b_key.dtype), b_key, b_sum)
    if not IS_NEAR:
        b_rest = b_w * b_steepness
        if KIND == ANY:  # `query_block` adds the smallest key, whose w may overflow float16
            o_key = tile * BN + tl.arange(0, BN)[None, :]
            b_rest = tl.where(o_key == solution[4], 0.0, b_rest)
        if KIND == ANY and b_key.dtype != tl.float32:
            b_other = add_in_halves(b_other, b_rest, b_key)
        else:
            b_other = dot(b_rest.to(b_key.dtype), b_key, b_other)
    if PAIRED & NEEDS or not IS_NEAR:
        gap, mass = gap + tl.sum(b_dz, 1), mass + tl.sum(b_w, 1)
    sums = (b_sum, b_other, gap, mass)
    if GAMMA & NEEDS:
        b_x = tl.where(b_w > 0, b_t + solution[0], 0.0)
        by_gamma = add_pair(by_gamma, b_dz, b_w, b_x)
    if SCALE & NEEDS:
        by_scale = add_pair(by_scale, b_dz, b_w, b_steepness * b_dot)
    if SLOPE & NEEDS:
        o_key = tile * BN + tl.arange(0, BN)[None, :]
        b_x = tl.abs(rows[3] - o_key).to(tl.float32)
        by_slope = add_pair(by_slope, b_dz, b_w, b_x)
    if ALPHA & NEEDS:
        by_alpha = add_all(by_alpha, alpha_sums(b_p, b_dp - guess[:, None], solution[3] - 1))
    return sums, by_gamma, by_scale, by_slope, by_alpha


@triton.jit
def query_block(
    b, h, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_grad, p_state, p_output, p_value_mean, p_mean, p_query_grad, p_rows_grad, alpha, gamma,
    scale, softcap, dropout, heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g,
    key_s, value_b, value_g, value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t,
    mask_s, grad_b, grad_h, grad_t,
    NEEDS: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E:
    tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries of one head and of their parameters, and Σ w dp / Σ w; with
    `p_value_mean` that of the values, less the output, is known."""
    g = h // (heads // groups)
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)
    o_row = (b * heads + h) * T + o_t
    p_starts += b * starts_b
    p_stops += b * stops_b
    ranges = key_ranges(p_starts, p_stops, block * BM, tl.minimum(block * BM + BM, T) - 1, BN)
    inner, inner_end, begin, before, edges = ranges
    # (BM,) each
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha, b_gamma, b_scale, _, b_sink = parameters
    if HAS_MASK & FEATURES:
        p_mask += b * mask_b + h * mask_h
    rows = load_queries(
        parameters, p_starts, p_stops, p_diagonal + b * diagonal_b, p_mask, o_t, o_t < T, mask_t,
        1, FEATURES,
    )  # fmt: skip
    top = tl.load(p_state + o_row)
    base = tl.load(p_state + n + o_row)
    rest = tl.load(p_state + 2 * n + o_row)
    solution = (top[:, None], base[:, None], rest[:, None], b_alpha[:, None], -1, 0.0)
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    values = (p_value + b * value_b + g * value_g, value_s)
    noise = (0, 0, 0.0)
    if DROPOUT & FEATURES:
        noise = (tl.load(p_seed), (o_row * S)[:, None], dropout)
    # (BM, BD) and (BM, BE)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    b_grad = load_row_tile(p_grad + b * grad_b + h * grad_h, o_t, grad_t, E, BE)

    zero = tl.zeros([BM], tl.float32)
    b_sink = ((b_alpha - 1) / b_gamma * b_sink)[:, None]
    b_p, b_w = zero[:, None], zero[:, None]
    if SINKS & FEATURES:
        b_p, b_w = weights_tile(
            b_sink - top[:, None], base[:, None], rest[:, None], b_alpha[:, None], KIND
        )
    # Σ p dp is near the mean of dp under w, so differences keep their digits.
    IS_NEAR: tl.constexpr = p_value_mean is not None
    b_output = load_row_tile(p_output, o_row, E, E, BE).to(tl.float32)
    if IS_NEAR:
        b_output += load_row_tile(p_value_mean, o_row, E, E, BE).to(tl.float32)
    guess = tl.sum(b_grad.to(tl.float32) * b_output, 1)
    guess = tl.where(tl.abs(guess) < float("inf"), guess, 0.0)
    o_least, least_slope = tl.full([BM], -1, tl.int32), zero
    if KIND == ANY:
        distance = 2.0**-20 * (1 + tl.abs(top))  # more than scores of two kernels differ
        if SINKS & FEATURES:
            sink_distance = tl.abs(tl.sum(b_sink, 1) - top + base)
            guess = tl.where((b_alpha > 2) & (sink_distance < distance), 0.0, guess)
            distance = tl.minimum(distance, sink_distance)
        o_least, guess, least_slope = find_least(
            (distance, guess), b_query, b_grad, ranges, keys, values, rows, solution, noise,
            softcap, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
        solution = (
            top[:, None], base[:, None], rest[:, None], b_alpha[:, None], o_least[:, None],
            guess[:, None],
        )  # fmt: skip

    b_zero = tl.zeros([BM, BD], tl.float32)
    weight = tl.sum(b_w, 1)
    sums = (b_zero, b_zero, -weight * guess, weight)
    by_gamma, by_scale, by_slope = (zero, zero), (zero, zero), (zero, zero)
    by_alpha = (zero, zero, zero, zero, zero, zero, zero)
    for i in range(inner, inner_end):
        sums, by_gamma, by_scale, by_slope, by_alpha = gradient_tile(
            sums, by_gamma, by_scale, by_slope, by_alpha, guess, b_query, b_grad, i, keys,
            values, rows, solution, noise, softcap,
            NEEDS, IS_NEAR, False, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    for i in range(edges):
        sums, by_gamma, by_scale, by_slope, by_alpha = gradient_tile(
            sums, by_gamma, by_scale, by_slope, by_alpha, guess, b_query, b_grad,
            edge_tile(i, begin, before, inner_end), keys, values, rows, solution, noise, softcap,
            NEEDS, IS_NEAR, True, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    b_sum, b_other, gap, mass = sums
    lack = 0 * top  # NaN if the row is
    if PAIRED & NEEDS or not IS_NEAR:
        lack += gap / tl.where(mass > 0, mass, 1.0)
    mean = guess + (0 * top if IS_NEAR else lack)  # the same whatever gradients are wanted
    if KIND == ANY:
        slope = lack * power_of(rest, 2 - b_alpha) * least_slope
        b_least = load_row_tile(keys[0], tl.maximum(o_least, 0), key_s, D, BD).to(tl.float32)
        b_sum -= tl.where(o_least >= 0, slope, 0.0)[:, None] * finite(b_least)
    b_sum -= lack[:, None] * b_other  # which is zero if the guess is near
    m_row = block * BM + tl.arange(0, BM) < T
    store_tile(p_query_grad, b_sum * (b_scale / b_gamma)[:, None], o_row, m_row, D, BD)
    if KIND == ANY:  # the guess, what it lacks, and the key that it is of, apart
        tl.store(p_mean + o_row, guess + 0 * top, mask=m_row)
        tl.store(p_mean + n + o_row, lack, mask=m_row)
        tl.store(p_mean + 2 * n + o_row, o_least.to(tl.float32, bitcast=True), mask=m_row)
    else:
        tl.store(p_mean + o_row, mean, mask=m_row)
    if NEEDS:
        p_rows_grad += o_row
        if ALPHA & NEEDS:
            by_sink = alpha_sums(b_p, b_p * 0 - guess[:, None], b_alpha[:, None] - 1)
            by_alpha = add_all(by_alpha, by_sink)
            tl.store(p_rows_grad, alpha_gradient(by_alpha, b_alpha - 1) + 0 * top, mask=m_row)
        if GAMMA & NEEDS:
            b_x = tl.where(b_w > 0, b_sink, 0.0)
            total = by_gamma[0] - lack * by_gamma[1] - weight * (guess + lack) * tl.sum(b_x, 1)
            tl.store(p_rows_grad + n, total / (b_gamma * (1 - b_alpha)), mask=m_row)
        if SCALE & NEEDS:
            total = by_scale[0] - lack * by_scale[1]
            tl.store(p_rows_grad + 2 * n, total / b_gamma, mask=m_row)
        if SLOPE & NEEDS:
            total = by_slope[0] - lack * by_slope[1]
            tl.store(p_rows_grad + 3 * n, -total / b_gamma, mask=m_row)
        if SINK & NEEDS:
            tl.store(p_rows_grad + 4 * n, -weight * mean / b_gamma, mask=m_row)


@triton.jit
def attention_backward_query_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed, p_grad, p_state,
    p_output, p_value_mean, p_mean, p_query_grad, p_rows_grad, p_dense, p_whole,
    alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    NEEDS: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, CLASS: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """What `query_block` does for all queries; with `p_dense` only for blocks that are dense, and
    of the CLASS."""
    blocks = tl.cdiv(T, BM)
    rows = n // T
    first, end = own_blocks(blocks * rows, p_whole, rows // heads * groups)
    for index in range(first, end):
        b, h, place = locate(index, blocks, heads, rows)
        block = blocks - 1 - place
        if is_chosen(p_dense, (b * heads + h) * tl.cdiv(T, BLOCK) + block * BM // BLOCK, CLASS):
            query_block(
                b, h, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows,
                p_mask, p_seed, p_grad, p_state, p_output, p_value_mean, p_mean, p_query_grad,
                p_rows_grad, alpha, gamma, scale, softcap, dropout, heads, groups, T, S, n,
                query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g, value_s,
                starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h,
                grad_t, NEEDS, KIND, FEATURES, D, E, BM, BN, BD, BE,
            )  # fmt: skip
