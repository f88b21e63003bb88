"""The backward kernel of the queries: scores are computed anew from the states of the rows.

With w = p^(2−α) on the support, the gradient of a score is w (dp − Σ w dp / Σ w)/γ. One pass over
the tiles sums; the next has the gradients of the queries and of the parameters of their rows.
"""

import triton
import triton.language as tl

from .triton_scores import (
    BLOCK,
    DROPOUT,
    HAS_MASK,
    MASKED,
    SINKS,
    distances_tile,
    dot,
    edge_tile,
    is_chosen,
    kept_tile,
    key_ranges,
    load_parameters,
    load_queries,
    load_row_tile,
    load_tile,
    store_tile,
)
from .triton_threshold import weights_tile

ALPHA = tl.constexpr(1)
"""Bits of NEEDS: of which parameters of the rows the gradients are wanted."""
GAMMA = tl.constexpr(2)
SCALE = tl.constexpr(4)
SLOPE = tl.constexpr(8)
SINK = tl.constexpr(16)


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
def query_tile(
    b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Of a tile (BM, BN) x − top, p, w, dp, the products, their slopes; and the keys (BN, BD)."""
    p_key, key_stride, mask_stride, S = keys
    p_value, value_stride = values
    top, base, rest, alpha = solution
    o_key = tile * BN + tl.arange(0, BN)[None, :]
    # (BN, BD) and (BN, BE)
    b_key = load_tile(p_key, tile * BN, key_stride, S, EDGE, D, BN, BD)
    b_value = load_tile(p_value, tile * BN, value_stride, S, EDGE, E, BN, BE)
    b_zero = tl.zeros([b_query.shape[0], BN], tl.float32)
    b_dot = dot(b_query, tl.trans(b_key), b_zero)
    b_t, b_steepness = distances_tile(
        b_dot, top, rows, o_key, mask_stride, o_key < S, softcap, EDGE, FEATURES
    )
    b_p, b_w = weights_tile(b_t, base, rest, alpha, KIND)
    b_dp = dot(b_grad, tl.trans(b_value), b_zero)
    if DROPOUT & FEATURES:
        seed, o_pair, dropout = noise
        b_dp *= kept_tile(seed, o_pair + o_key, dropout)
    return b_t, b_p, b_w, b_dp, b_dot, b_steepness, b_key


@triton.jit
def mean_tile(
    mass, sum, b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Σ w and Σ w dp with one more tile."""
    _, _, b_w, b_dp, _, _, _ = query_tile(
        b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
        EDGE, KIND, FEATURES, D, E, BN, BD, BE,
    )  # fmt: skip
    return mass + tl.sum(b_w, 1), sum + tl.sum(b_w * b_dp, 1)


@triton.jit
def add_all(one, other):
    return (
        one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3],
        one[4] + other[4], one[5] + other[5], one[6] + other[6],
    )  # fmt: skip


@triton.jit
def gradient_tile(
    b_sum, by_gamma, by_scale, by_slope, by_alpha, mean, b_query, b_grad, tile, keys, values,
    rows, solution, noise, softcap,
    NEEDS: tl.constexpr, EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of the queries and of the rows' parameters with one more tile, all
    but for a factor of each row."""
    b_t, b_p, b_w, b_dp, b_dot, b_steepness, b_key = query_tile(
        b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
        EDGE, KIND, FEATURES, D, E, BN, BD, BE,
    )  # fmt: skip
    b_dz = b_w * (b_dp - mean[:, None])
    if EDGE or MASKED & FEATURES:
        b_dz = tl.where(b_t == -float("inf"), 0.0, b_dz)
    b_sum = dot((b_dz * b_steepness).to(b_key.dtype), b_key, b_sum)
    if GAMMA & NEEDS:
        b_x = tl.where(b_w > 0, b_t + solution[0], 0.0)
        by_gamma += tl.sum(b_dz * b_x, 1)
    if SCALE & NEEDS:
        by_scale += tl.sum(b_dz * b_steepness * b_dot, 1)
    if SLOPE & NEEDS:
        o_key = tile * BN + tl.arange(0, BN)[None, :]
        by_slope += tl.sum(b_dz * tl.abs(rows[3] - o_key).to(tl.float32), 1)
    if ALPHA & NEEDS:
        by_alpha = add_all(by_alpha, alpha_sums(b_p, b_dp, solution[3] - 1))
    return b_sum, by_gamma, by_scale, by_slope, by_alpha


@triton.jit
def attention_backward_query_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed, p_grad, p_state,
    p_mean, p_query_grad, p_rows_grad, p_dense, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    NEEDS: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries of one head and of their parameters, and Σ w dp / Σ w."""
    blocks = tl.cdiv(T, BM)
    block = blocks - 1 - tl.program_id(0) % blocks
    h = (tl.program_id(0) // blocks % heads).to(tl.int64)
    b = (tl.program_id(0) // blocks // heads).to(tl.int64)
    g = h // (heads // groups)
    if not is_chosen(p_dense, (b * heads + h) * tl.cdiv(T, BLOCK) + block * BM // BLOCK):
        return
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)
    o_row = (b * heads + h) * T + o_t
    p_starts += b * starts_b
    p_stops += b * stops_b
    inner, inner_end, begin, before, edges = key_ranges(
        p_starts, p_stops, block * BM, tl.minimum(block * BM + BM, T) - 1, BN
    )
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
    solution = (top[:, None], base[:, None], rest[:, None], b_alpha[:, None])
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
    mass, total = tl.sum(b_w, 1), zero
    for i in range(inner, inner_end):
        mass, total = mean_tile(
            mass, total, b_query, b_grad, i, keys, values, rows, solution, noise, softcap,
            False, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    for i in range(edges):
        mass, total = mean_tile(
            mass, total, b_query, b_grad, edge_tile(i, begin, before, inner_end), keys, values,
            rows, solution, noise, softcap, True, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    mean = total / tl.where(mass > 0, mass, 1.0) + 0 * top  # NaN if the row is

    b_sum = tl.zeros([BM, BD], tl.float32)
    by_gamma, by_scale, by_slope = zero, zero, zero
    by_alpha = (zero, zero, zero, zero, zero, zero, zero)
    for i in range(inner, inner_end):
        b_sum, by_gamma, by_scale, by_slope, by_alpha = gradient_tile(
            b_sum, by_gamma, by_scale, by_slope, by_alpha, mean, b_query, b_grad, i, keys,
            values, rows, solution, noise, softcap,
            NEEDS, False, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    for i in range(edges):
        b_sum, by_gamma, by_scale, by_slope, by_alpha = gradient_tile(
            b_sum, by_gamma, by_scale, by_slope, by_alpha, mean, b_query, b_grad,
            edge_tile(i, begin, before, inner_end), keys, values, rows, solution, noise, softcap,
            NEEDS, True, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    m_row = block * BM + tl.arange(0, BM) < T
    store_tile(p_query_grad, b_sum * (b_scale / b_gamma)[:, None], o_row, m_row, D, BD)
    tl.store(p_mean + o_row, mean, mask=m_row)
    if NEEDS:
        by_sink = -tl.sum(b_w, 1) * mean
        p_rows_grad += o_row
        if ALPHA & NEEDS:
            by_alpha = add_all(by_alpha, alpha_sums(b_p, b_p * 0, b_alpha[:, None] - 1))
            tl.store(p_rows_grad, alpha_gradient(by_alpha, b_alpha - 1) + 0 * top, mask=m_row)
        if GAMMA & NEEDS:
            b_x = tl.where(b_w > 0, b_sink, 0.0)
            by_gamma += by_sink * tl.sum(b_x, 1)
            by_gamma = by_gamma / (b_gamma * (1 - b_alpha))
            tl.store(p_rows_grad + n, by_gamma, mask=m_row)
        if SCALE & NEEDS:
            tl.store(p_rows_grad + 2 * n, by_scale / b_gamma, mask=m_row)
        if SLOPE & NEEDS:
            tl.store(p_rows_grad + 3 * n, -by_slope / b_gamma, mask=m_row)
        if SINK & NEEDS:
            tl.store(p_rows_grad + 4 * n, by_sink / b_gamma, mask=m_row)
