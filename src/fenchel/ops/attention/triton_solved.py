"""Tiles of the backward kernels: weights and products anew from the states of the rows, and of each
row the key of the smallest weight."""

import triton
import triton.language as tl

from .triton_scores import (
    CHANGED,
    DROPOUT,
    distances_tile,
    dot,
    edge_tile,
    kept_tile,
    load_tile,
)
from .triton_threshold import ANY, power_of, powers, rise_from, weights_tile


@triton.jit
def solved_tile(
    b_dot, solution, rows, o_key, mask_stride, m_pair, softcap,
    IS_HALF: tl.constexpr, EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Of each pair x − top, the slope of its score, p and w, from the products. Half precision does
    not show what a threshold rounds, so there one instruction goes from the product to u. The
    weight of a row's smallest key is `rest`, however its score is rounded here."""
    top, base, rest, alpha, o_least, _ = solution
    if IS_HALF and KIND != ANY and not EDGE and not CHANGED & FEATURES:
        b_u = rise_from(b_dot, rows[0], base - top)
        b_p, b_w = powers(b_u, alpha, KIND)
        return b_u - base, tl.full(b_dot.shape, 1.0, tl.float32), b_p, b_w
    else:
        b_t, b_steepness = distances_tile(
            b_dot, top, rows, o_key, mask_stride, m_pair, softcap, EDGE, FEATURES
        )
        b_p, b_w = weights_tile(b_t, base, rest, alpha, KIND)
        if KIND == ANY:
            m_least = o_key == o_least
            b_p = tl.where(m_least, rest, b_p)
            b_w = tl.where(m_least, power_of(rest, 2 - alpha), b_w)
        return b_t, b_steepness, b_p, b_w


@triton.jit
def query_tile(
    b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Of a tile (BM, BN) x − top, p, w, dp, the products, their slopes; and the keys (BN, BD)."""
    p_key, key_stride, mask_stride, S = keys
    p_value, value_stride = values
    o_key = tile * BN + tl.arange(0, BN)[None, :]
    # (BN, BD) and (BN, BE)
    b_key = load_tile(p_key, tile * BN, key_stride, S, EDGE, D, BN, BD)
    b_value = load_tile(p_value, tile * BN, value_stride, S, EDGE, E, BN, BE)
    b_zero = tl.zeros([b_query.shape[0], BN], tl.float32)
    b_dot = dot(b_query, tl.trans(b_key), b_zero)
    b_t, b_steepness, b_p, b_w = solved_tile(
        b_dot, solution, rows, o_key, mask_stride, o_key < S, softcap,
        b_query.dtype != tl.float32, EDGE, KIND, FEATURES,
    )  # fmt: skip
    b_dp = dot(b_grad, tl.trans(b_value), b_zero)
    if DROPOUT & FEATURES:
        seed, o_pair, dropout = noise
        b_dp *= kept_tile(seed, o_pair + o_key, dropout)
    if KIND == ANY:
        b_dp = tl.where(o_key == solution[4], solution[5], b_dp)
    return b_t, b_p, b_w, b_dp, b_dot, b_steepness, b_key


@triton.jit
def least_tile(
    found, b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
    EDGE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Of each row the key whose score is nearest to the smallest in the support, with one more
    tile: how near, which key, its dp, and the slope of its score."""
    distance, o_least, shift, slope = found
    b_t, _, _, b_dp, _, b_steepness, _ = query_tile(
        b_query, b_grad, tile, keys, values, rows, solution, noise, softcap,
        EDGE, KIND, FEATURES, D, E, BN, BD, BE,
    )  # fmt: skip
    o_key = tile * BN + tl.arange(0, BN)[None, :]
    b_distance = tl.abs(b_t + solution[1])
    nearest = tl.min(b_distance, 1)
    is_nearer = (nearest < distance) & (solution[3] > 2).reshape(nearest.shape)
    o_nearest = tl.min(tl.where(b_distance == nearest[:, None], o_key, 2147483647), 1)
    m_nearest = o_key == o_nearest[:, None]
    return (
        tl.where(is_nearer, nearest, distance),
        tl.where(is_nearer, o_nearest, o_least),
        tl.where(is_nearer, tl.sum(tl.where(m_nearest, b_dp, 0.0), 1), shift),
        tl.where(is_nearer, tl.sum(tl.where(m_nearest, b_steepness, 0.0), 1), slope),
    )


@triton.jit
def find_least(
    start, b_query, b_grad, ranges, keys, values, rows, solution, noise, softcap,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Above α = 2, of each row the key of the smallest weight, its dp and the slope of its score.

    `start` has a distance and a dp, which stay if no key is nearer: a row of one weight may have a
    threshold that is not the score of a key. The key is −1 then, and where α is not above 2.
    """
    inner, inner_end, begin, before, edges = ranges
    distance, shift = start
    found = (distance, tl.full(distance.shape, -1, tl.int32), shift, tl.zeros_like(distance))
    is_steep = tl.max(solution[3]) > 2
    for i in range(inner, tl.where(is_steep, inner_end, inner)):
        found = least_tile(
            found, b_query, b_grad, i, keys, values, rows, solution, noise, softcap,
            False, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    for i in range(tl.where(is_steep, edges, 0)):
        found = least_tile(
            found, b_query, b_grad, edge_tile(i, begin, before, inner_end), keys, values, rows,
            solution, noise, softcap, True, KIND, FEATURES, D, E, BN, BD, BE,
        )  # fmt: skip
    return found[1], found[2], found[3]
