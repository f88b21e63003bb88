"""Passes over the scores of complete rows, which are computed anew in each: the largest ones, and
sums of powers."""

import triton
import triton.language as tl

from .._triton.root import larger
from .triton_scores import distances_tile, dot, edge_tile, load_tile
from .triton_threshold import (
    ANY,
    QUADRATIC,
    lessen,
    merge_moments,
    moments,
    narrow,
    partial_sums,
    terms,
)

MAX_PASSES = tl.constexpr(40)
"""How often a row's threshold moves at most; a few times is usual."""


@triton.jit
def key_products(
    b_query, tile, keys, EDGE: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    """The products of the queries with the keys of a tile, (BM, BN)."""
    p_key, key_stride, _, S = keys
    # (BN, BD)
    b_key = load_tile(p_key, tile * BN, key_stride, S, EDGE, D, BN, BD)
    return dot(b_query, tl.trans(b_key), tl.zeros([b_query.shape[0], BN], tl.float32))


@triton.jit
def key_distances(
    b_query, tile, top, keys, rows, softcap,
    EDGE: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """x − top of a tile, (BM, BN); `top` is (BM,)."""
    _, _, mask_stride, S = keys
    o_key = tile * BN + tl.arange(0, BN)[None, :]
    b_dot = key_products(b_query, tile, keys, EDGE, D, BN, BD)
    b_t, _ = distances_tile(
        b_dot, top[:, None], rows, o_key, mask_stride, o_key < S, softcap, EDGE, FEATURES
    )
    return b_t


@triton.jit
def keep_largest(b_first, b_second, b_x):
    """The two largest of three, and NaN as the first if one is."""
    return larger(b_first, b_x), tl.maximum(b_second, tl.minimum(b_first, b_x))


@triton.jit
def largest_scores(
    b_query, keys, rows, ranges, softcap,
    FEATURES: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The two largest x of each class of keys, (BM, BN) each."""
    inner, inner_end, begin, before, edges = ranges
    zero = tl.zeros([BM], tl.float32)
    b_first = tl.full([BM, BN], -float("inf"), tl.float32)
    b_second = b_first
    for i in range(inner, inner_end):
        b_x = key_distances(b_query, i, zero, keys, rows, softcap, False, FEATURES, D, BN, BD)
        b_first, b_second = keep_largest(b_first, b_second, b_x)
    for i in range(edges):
        tile = edge_tile(i, begin, before, inner_end)
        b_x = key_distances(b_query, tile, zero, keys, rows, softcap, True, FEATURES, D, BN, BD)
        b_first, b_second = keep_largest(b_first, b_second, b_x)
    return b_first, b_second


@triton.jit
def add_terms(sums, b_terms, KIND: tl.constexpr, IS_HALF: tl.constexpr):
    """Partial sums of `terms`, not those of ANY, with one more tile; only QUADRATIC has a third."""
    third = sums[2]
    if KIND == QUADRATIC:
        third += partial_sums(b_terms[2], IS_HALF)
    first = sums[0] + partial_sums(b_terms[0], IS_HALF)
    return first, sums[1] + partial_sums(b_terms[1], IS_HALF), third


@triton.jit
def no_terms(BM: tl.constexpr, IS_HALF: tl.constexpr):
    b_zero = tl.zeros([BM, 8 if IS_HALF else 1], tl.float32)
    return b_zero, b_zero, b_zero


@triton.jit
def add_moments(
    sums, b_t, base, rest, alpha, KIND: tl.constexpr, IS_HALF: tl.constexpr
):  # fmt: skip
    """The moments of rows, of ANY, or else their partial sums, with one more tile."""
    if KIND == ANY:
        return merge_moments(sums, moments(b_t, base, rest, alpha, KIND), KIND)
    else:
        b_terms = terms(b_t, base[:, None], rest[:, None], alpha[:, None], KIND)
        return add_terms(sums, b_terms, KIND, IS_HALF)


@triton.jit
def row_moments(
    b_query, b_sink, top, base, rest, alpha, keys, rows, ranges, softcap,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """The moments of the complete rows, (BM,) each."""
    inner, inner_end, begin, before, edges = ranges
    IS_HALF: tl.constexpr = b_query.dtype != tl.float32
    more = moments(b_sink, base, rest, alpha, KIND)
    sums = more if KIND == ANY else no_terms(b_query.shape[0], IS_HALF)
    for i in range(inner, inner_end):
        b_t = key_distances(b_query, i, top, keys, rows, softcap, False, FEATURES, D, BN, BD)
        sums = add_moments(sums, b_t, base, rest, alpha, KIND, IS_HALF)
    for i in range(edges):
        tile = edge_tile(i, begin, before, inner_end)
        b_t = key_distances(b_query, tile, top, keys, rows, softcap, True, FEATURES, D, BN, BD)
        sums = add_moments(sums, b_t, base, rest, alpha, KIND, IS_HALF)
    if KIND == ANY:
        return sums
    else:
        return merge_moments(sum_rows(sums), more, KIND)


@triton.jit
def sum_rows(sums):
    """Partial sums of rows as complete ones."""
    return tl.sum(sums[0], 1), tl.sum(sums[1], 1), tl.sum(sums[2], 1)


@triton.jit
def steep_root(
    b_query, b_sink, top, base, done, alpha, keys, rows, ranges, softcap,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Distance from the top and weight of the smallest score in the support, of rows with α > 2
    that are not done; `base` is where the search starts."""
    zero = base * 0
    trial, low, high, farthest = base, zero, zero + 1, zero + 1
    found, walked, steps = done, done & ~done, 0
    while (steps < 2 * MAX_PASSES) & (tl.min(found.to(tl.int32), 0) == 0):
        sums = row_moments(
            b_query, b_sink, top, trial, zero, alpha, keys, rows, ranges, softcap,
            KIND, FEATURES, D, BN, BD,
        )  # fmt: skip
        trial, low, high, farthest, walked, found = narrow(
            sums, trial, low, high, farthest, walked, found
        )
        steps += 1
    least, steps = zero + 1, 0
    while (steps < MAX_PASSES) & (tl.min(done.to(tl.int32), 0) == 0):
        sums = row_moments(
            b_query, b_sink, top, farthest, least, alpha, keys, rows, ranges, softcap,
            KIND, FEATURES, D, BN, BD,
        )  # fmt: skip
        least, done = lessen(sums, least, done)
        steps += 1
    return farthest, least
