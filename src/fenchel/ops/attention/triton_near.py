"""The thresholds of dense rows, up to what a pass over the values settles.

A pass computes all scores of a row again, and takes from them the sum of the weights and its first
two derivatives. The steps converge with the third power, so one to three passes do.
"""

import triton
import triton.language as tl

from .triton_passes import key_distances, key_products
from .triton_scores import (
    BLOCK,
    CHANGED,
    SINKS,
    edge_tile,
    is_chosen,
    key_ranges,
    load_parameters,
    load_queries,
    load_row_tile,
    locate,
    own_blocks,
)
from .triton_threshold import LINEAR, far_terms, halley, is_near, partial_sums, rise, rise_from

MAX_PASSES = tl.constexpr(8)
"""From there on `attention_forward_kernel` goes on, which brackets the threshold."""


@triton.jit
def add_far_terms(sums, b_u, alpha, KIND: tl.constexpr, IS_HALF: tl.constexpr):
    """Partial sums of `far_terms` with one more tile."""
    b_p, b_w, b_curve = far_terms(b_u, alpha[:, None], KIND)
    curve = sums[2]
    if KIND != LINEAR:
        curve += partial_sums(b_curve, IS_HALF)
    return sums[0] + partial_sums(b_p, IS_HALF), sums[1] + partial_sums(b_w, IS_HALF), curve


@triton.jit
def near_block(
    b, h, block, p_query, p_key, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_state,
    alpha, gamma, scale, softcap, heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g,
    key_s, starts_b, stops_b, diagonal_b, mask_t, mask_s,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The bases of BM queries of one head."""
    IS_HALF: tl.constexpr = p_query.dtype.element_ty != tl.float32
    g = h // (heads // groups)
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)
    o_row = (b * heads + h) * T + o_t
    p_starts += b * starts_b
    p_stops += b * stops_b
    inner, inner_end, begin, before, edges = key_ranges(
        p_starts, p_stops, block * BM, tl.minimum(block * BM + BM, T) - 1, BN
    )
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha, b_gamma, _, _, b_sink = parameters
    rows = load_queries(
        parameters, p_starts, p_stops, p_diagonal + b * diagonal_b, p_mask, o_t, o_t < T, mask_t,
        1, FEATURES,
    )  # fmt: skip
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    # (BM, BD)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    top = tl.load(p_state + o_row)
    base = tl.load(p_state + n + o_row)
    least = tl.exp((1 - b_alpha) * tl.log(S + 1.0)) * (1 - 1e-3)
    near = ~(tl.abs(top) < float("inf"))
    peak = tl.where(near, 0.0, top)
    if SINKS & FEATURES:
        b_sink = ((b_alpha - 1) / b_gamma * b_sink - peak)[:, None]
    steps = 0
    while (steps < MAX_PASSES) & (tl.min(near.to(tl.int32), 0) == 0):
        b_zero = tl.zeros([BM, 8 if IS_HALF else 1], tl.float32)
        sums = (b_zero, b_zero, b_zero)
        shift = (base - peak)[:, None]
        for i in range(inner, inner_end):
            if CHANGED & FEATURES:
                b_t = key_distances(
                    b_query, i, peak, keys, rows, softcap, False, FEATURES, D, BN, BD
                )
                b_u = rise(b_t, base[:, None])
            else:
                b_u = rise_from(key_products(b_query, i, keys, False, D, BN, BD), rows[0], shift)
            sums = add_far_terms(sums, b_u, b_alpha, KIND, IS_HALF)
        for i in range(edges):
            tile = edge_tile(i, begin, before, inner_end)
            b_t = key_distances(b_query, tile, peak, keys, rows, softcap, True, FEATURES, D, BN, BD)
            sums = add_far_terms(sums, rise(b_t, base[:, None]), b_alpha, KIND, IS_HALF)
        total, slope, curve = tl.sum(sums[0], 1), tl.sum(sums[1], 1), tl.sum(sums[2], 1)
        if SINKS & FEATURES:
            b_p, b_w, b_curve = far_terms(rise(b_sink, base[:, None]), b_alpha[:, None], KIND)
            total, slope = total + tl.sum(b_p, 1), slope + tl.sum(b_w, 1)
            curve += tl.sum(b_curve, 1)
        moved = base - halley(total, slope, curve, b_alpha)
        is_inside = (moved > least) & (moved < 1)
        base = tl.where(near | ~is_inside, base, moved)
        near = near | ~is_inside | is_near(total, b_alpha)
        steps += 1
    tl.store(p_state + n + o_row, base, mask=block * BM + tl.arange(0, BM) < T)


@triton.jit
def near_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_state, p_dense, p_whole, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s,
    KIND: tl.constexpr, FEATURES: tl.constexpr, CLASS: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Moves the bases in the states of dense blocks of the CLASS from where `bound_kernel` put them
    to where a step is short."""
    blocks = tl.cdiv(T, BM)
    rows = n // T
    first, end = own_blocks(blocks * rows, p_whole, rows // heads * groups)
    for index in range(first, end):
        b, h, place = locate(index, blocks, heads, rows)
        block = blocks - 1 - place
        if is_chosen(p_dense, (b * heads + h) * tl.cdiv(T, BLOCK) + block * BM // BLOCK, CLASS):
            near_block(
                b, h, block, p_query, p_key, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_state,
                alpha, gamma, scale, softcap, heads, groups, T, S, n, query_b, query_h, query_t,
                key_b, key_g, key_s, starts_b, stops_b, diagonal_b, mask_t, mask_s,
                KIND, FEATURES, D, BM, BN, BD,
            )  # fmt: skip
