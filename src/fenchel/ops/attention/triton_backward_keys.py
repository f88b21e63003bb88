"""The backward kernel of the keys and values.

A program adds up over all queries that see its keys, of all heads of the group, in a fixed order.
So no two programs write to the same place, and results are always the same.
"""

import triton
import triton.language as tl

from .triton_scores import (
    DROPOUT,
    HAS_MASK,
    MASKED,
    dot,
    edge_tile,
    finite,
    is_chosen,
    kept_tile,
    load_parameters,
    load_queries,
    load_tile,
    locate,
    own_blocks,
    query_ranges,
    store_tile,
)
from .triton_solved import solved_tile
from .triton_threshold import ANY


@triton.jit
def key_tile(
    b_key_sum, b_value_sum, b_key, b_value, block, o_key, queries, numbers,
    places, state, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of the keys and values, (BN, BD) and (BN, BE), with one more block of BM
    queries. Blocks of pairs are (BM, BN), so that a lane needs the numbers of a few queries."""
    p_query, query_stride, p_grad, grad_stride, T, S = queries
    p_rows, first_row, n, alpha, gamma, scale = numbers
    p_starts, p_stops, p_diagonal, p_mask, mask_t, mask_s = places
    p_state, p_mean = state
    o_t = block * BM + tl.arange(0, BM)
    m_t = o_t < T
    o_row = first_row + tl.minimum(o_t, T - 1)
    # (BM, BD) and (BM, BE)
    b_query = load_tile(p_query, block * BM, query_stride, T, EDGE, D, BM, BD)
    b_grad = load_tile(p_grad, block * BM, grad_stride, T, EDGE, E, BM, BE)
    # (BM,) each
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    rows = load_queries(
        parameters, p_starts, p_stops, p_diagonal, p_mask, o_t, m_t, mask_t, 1, FEATURES
    )
    mean = tl.load(p_mean + o_row)[:, None]
    lack, o_least = 0.0, -1
    if KIND == ANY:
        lack = tl.load(p_mean + n + o_row)[:, None]
        o_least = tl.load(p_mean + 2 * n + o_row).to(tl.int32, bitcast=True)[:, None]
    solution = (
        tl.load(p_state + o_row)[:, None],
        tl.load(p_state + n + o_row)[:, None],
        tl.load(p_state + 2 * n + o_row)[:, None],
        parameters[0][:, None],
        o_least,
        mean,
    )
    slope = (parameters[2] / parameters[1])[:, None]
    b_zero = tl.zeros([BM, b_key.shape[0]], tl.float32)
    b_dot = dot(b_query, tl.trans(b_key), b_zero)
    m_pair = (o_key < S) & m_t[:, None]
    b_t, b_steepness, b_p, b_w = solved_tile(
        b_dot, solution, rows, o_key, mask_s, m_pair, softcap,
        b_query.dtype != tl.float32, EDGE, KIND, FEATURES,
    )  # fmt: skip
    b_dp = dot(b_grad, tl.trans(b_value), b_zero)
    if DROPOUT & FEATURES:
        seed, dropout = noise
        b_kept = kept_tile(seed, (o_row * S)[:, None] + o_key, dropout)
        b_p *= b_kept
        b_dp *= b_kept
    b_value_sum = dot(tl.trans(b_p.to(b_grad.dtype)), b_grad, b_value_sum)
    if KIND == ANY:
        b_dp = tl.where(o_key == o_least, mean, b_dp)
        b_ds = b_w * (b_dp - mean - lack) * slope * b_steepness
    else:
        b_ds = b_w * (b_dp * slope - mean * slope) * b_steepness
    if EDGE or MASKED & FEATURES:
        b_ds = tl.where(b_t == -float("inf"), 0.0, b_ds)
    if EDGE or HAS_MASK & FEATURES:
        b_query = finite(b_query)
    return dot(tl.trans(b_ds.to(b_query.dtype)), b_query, b_key_sum), b_value_sum


@triton.jit
def key_block(
    b, g, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_grad, p_state, p_mean, p_key_grad, p_value_grad, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of BN keys and values of one group, from all of its heads."""
    p_starts += b * starts_b
    p_stops += b * stops_b
    p_diagonal += b * diagonal_b
    inner, inner_end, begin, before, edges = query_ranges(p_starts, p_stops, block * BN, T, BM, BN)
    o_key = block * BN + tl.arange(0, BN)
    # (BN, BD) and (BN, BE)
    b_key = load_tile(p_key + b * key_b + g * key_g, block * BN, key_s, S, True, D, BN, BD)
    b_value = load_tile(
        p_value + b * value_b + g * value_g, block * BN, value_s, S, True, E, BN, BE
    )
    noise = (0, 0.0)
    if DROPOUT & FEATURES:
        noise = (tl.load(p_seed), dropout)
    state = (p_state, p_mean)
    b_key_sum = tl.zeros([BN, BD], tl.float32)
    b_value_sum = tl.zeros([BN, BE], tl.float32)
    for i in range(heads // groups):
        h = g * (heads // groups) + i
        queries = (
            p_query + b * query_b + h * query_h, query_t,
            p_grad + b * grad_b + h * grad_h, grad_t, T, S,
        )  # fmt: skip
        numbers = (p_rows, (b * heads + h) * T, n, alpha, gamma, scale)
        p_seen = 0
        if HAS_MASK & FEATURES:
            p_seen = p_mask + b * mask_b + h * mask_h
        places = (p_starts, p_stops, p_diagonal, p_seen, mask_t, mask_s)
        for j in range(inner, inner_end):
            b_key_sum, b_value_sum = key_tile(
                b_key_sum, b_value_sum, b_key, b_value, j, o_key[None, :], queries,
                numbers, places, state, noise, softcap,
                False, KIND, FEATURES, D, E, BM, BD, BE,
            )  # fmt: skip
        for j in range(edges):
            b_key_sum, b_value_sum = key_tile(
                b_key_sum, b_value_sum, b_key, b_value, edge_tile(j, begin, before, inner_end),
                o_key[None, :], queries, numbers, places, state, noise, softcap,
                True, KIND, FEATURES, D, E, BM, BD, BE,
            )  # fmt: skip
    o_row = (b * groups + g) * S + o_key
    store_tile(p_key_grad, b_key_sum, o_row, o_key < S, D, BD)
    store_tile(p_value_grad, b_value_sum, o_row, o_key < S, E, BE)


@triton.jit
def attention_backward_key_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed, p_grad, p_state,
    p_mean, p_key_grad, p_value_grad, p_whole, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    KIND: tl.constexpr, FEATURES: tl.constexpr, CLASS: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """What `key_block` does for all keys; with `p_whole` only for groups that are dense, and of the
    CLASS."""
    blocks = tl.cdiv(S, BN)
    all_groups = n // T // heads * groups
    first, end = own_blocks(blocks * all_groups, p_whole, all_groups)
    for index in range(first, end):
        b, g, block = locate(index, blocks, groups, all_groups)
        if is_chosen(p_whole, b * groups + g, CLASS):
            key_block(
                b, g, block, p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows,
                p_mask, p_seed, p_grad, p_state, p_mean, p_key_grad, p_value_grad, alpha, gamma,
                scale, softcap, dropout, heads, groups, T, S, n, query_b, query_h, query_t, key_b,
                key_g, key_s, value_b, value_g, value_s, starts_b, stops_b, diagonal_b, mask_b,
                mask_h, mask_t, mask_s, grad_b, grad_h, grad_t, KIND, FEATURES, D, E, BM, BN, BD,
                BE,
            )  # fmt: skip
