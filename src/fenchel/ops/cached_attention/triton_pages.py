"""Cached attention on a GPU, first part: which pages of keys are read, and their scores.

1. `page_bounds_kernel` bounds the scores of each page. With q⁺ and q⁻ as the positive and negative
   part of a query, Σᵢ max(qᵢ lowᵢ, qᵢ highᵢ) = q⁺ · high + q⁻ · low: two products.
2. `page_list_kernel` reads the page with the highest bound of each query. What it finds there has a
   threshold that is at most the row's. It lists the pages with a bound above it.
3. `page_scores_kernel` reads the keys of these pages once. It stores the scores, and the largest
   one of each page in the place of its bound.

A program works for the queries of all heads that share keys, so that keys are read once. When a
cache grows, kernels are not compiled again: `do_not_specialize` names what changes then.
"""

import triton
import triton.language as tl

from .._triton.root import larger, row_max
from ..attention.triton_scores import (
    RESCALED,
    SINKS,
    SLOPES,
    SOFTCAP,
    distances_tile,
    dot,
    load_parameters,
    load_queries,
    load_tile,
    tanh,
)
from ..attention.triton_threshold import LARGEST, subset_base
from . import sizes

PAGE = tl.constexpr(sizes.PAGE)
ROUNDING = tl.constexpr(2.0**-22)
"""More than a product or a sum of float32 rounds, relative to its size."""


@triton.jit
def group_rows(b, g, heads, groups, T, BM: tl.constexpr):
    """The rows of the queries that share keys, (BM,): row, head, query, and whether there is one.
    Past the end the last one comes again."""
    repeat = heads // groups
    o = tl.arange(0, BM)
    o_in = tl.minimum(o, repeat * T - 1)
    h, t = g * repeat + o_in // T, o_in % T
    return (b * heads + h) * T + t, h, t, o < repeat * T


@triton.jit
def load_group(p_query, b, h, t, query_b, query_h, query_t, D: tl.constexpr, BD: tl.constexpr):
    """The queries, (BM, BD)."""
    o_d = tl.arange(0, BD)[None, :]
    p_tile = p_query + (b * query_b + h * query_h + t * query_t)[:, None] + o_d
    return tl.load(p_tile, mask=o_d < D, other=0.0)


@triton.jit
def norms(b_x):
    """The lengths of vectors, (N, BD)."""
    b_x = b_x.to(tl.float32)
    return tl.sqrt(tl.sum(b_x * b_x, 1))


@triton.jit(do_not_specialize=["P"])
def page_bounds_kernel(
    p_query, p_bounds, p_starts, p_stops, p_diagonal, p_rows, p_peaks,
    alpha, gamma, scale, softcap, heads, groups, T, P, n, query_b, query_h, query_t,
    bound_x, bound_b, bound_g, bound_p, starts_b, stops_b, diagonal_b,
    FEATURES: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """An upper bound of x for each query and page, (n, P), with what roundings may add."""
    blocks = tl.cdiv(P, BP)
    first = tl.program_id(0) % blocks * BP
    g = (tl.program_id(0) // blocks % groups).to(tl.int64)
    b = (tl.program_id(0) // blocks // groups).to(tl.int64)
    o_row, h, t, m_row = group_rows(b, g, heads, groups, T, BM)
    b_alpha, b_gamma, b_scale, b_slope, _ = load_parameters(
        p_rows, o_row, n, alpha, gamma, scale, FEATURES
    )
    # (BM, BD)
    b_query = load_group(p_query, b, h, t, query_b, query_h, query_t, D, BD)
    b_query = tl.where((b_scale < 0)[:, None], -b_query, b_query)
    b_up = tl.where(b_query > 0, b_query, 0).to(b_query.dtype)
    b_down = tl.where(b_query < 0, b_query, 0).to(b_query.dtype)
    p_low = p_bounds + b * bound_b + g * bound_g
    # (BP, BD) each
    b_low = load_tile(p_low, first, bound_p, P, True, D, BP, BD)
    b_high = load_tile(p_low + bound_x, first, bound_p, P, True, D, BP, BD)
    b_z = dot(b_up, tl.trans(b_high), tl.zeros([BM, BP], tl.float32))
    b_z = dot(b_down, tl.trans(b_low), b_z)
    b_size = norms(b_query)[:, None] * norms(tl.maximum(tl.abs(b_low), tl.abs(b_high)))[None, :]
    b_z = tl.abs(b_scale)[:, None] * (b_z + (D + 8) * ROUNDING * b_size)
    if SOFTCAP & FEATURES:
        b_z = softcap * (tanh(b_z / softcap) + 16 * ROUNDING)
    o_page = first + tl.arange(0, BP)
    o_first = (o_page * PAGE)[None, :]
    o_last = o_first + PAGE - 1
    if SLOPES & FEATURES:
        place = tl.load(p_diagonal + b * diagonal_b + t)[:, None]
        nearest = tl.maximum(tl.maximum(o_first - place, place - o_last), 0)
        farthest = tl.maximum(tl.abs(o_first - place), tl.abs(o_last - place))
        b_far = tl.where((b_slope < 0)[:, None], farthest, nearest).to(tl.float32)
        b_bias = b_slope[:, None] * b_far
        b_z += 4 * ROUNDING * (tl.abs(b_z) + tl.abs(b_bias)) - b_bias
    b_x = ((b_alpha - 1) / b_gamma)[:, None] * b_z
    b_x += 4 * ROUNDING * tl.abs(b_x)
    start = tl.load(p_starts + b * starts_b + t)[:, None]
    stop = tl.load(p_stops + b * stops_b + t)[:, None]
    m_seen = (o_first < stop) & (o_last >= start) & (start < stop)
    b_x = tl.where(m_seen, b_x, -float("inf"))
    m_pair = m_row[:, None] & (o_page < P)[None, :]
    tl.store(p_peaks + o_row[:, None] * P + o_page[None, :], b_x, mask=m_pair)


@triton.jit
def page_distances(
    b_query, page, keys, rows, softcap,
    EDGE: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x of a page, (BM, PAGE), and its keys (PAGE, BD)."""
    p_key, key_stride, S = keys
    b_key = load_tile(p_key, page * PAGE, key_stride, S, EDGE, D, PAGE, BD)
    b_dot = dot(b_query, tl.trans(b_key), tl.zeros([b_query.shape[0], PAGE], tl.float32))
    o_key = page * PAGE + tl.arange(0, PAGE)[None, :]
    top = tl.zeros([b_query.shape[0], 1], tl.float32)
    b_x, _ = distances_tile(b_dot, top, rows, o_key, 0, o_key < S, softcap, True, FEATURES)
    return b_x, b_key


@triton.jit
def highest_page(p_peaks, P, BP: tl.constexpr):
    """The page with the largest bound of one row."""
    o = tl.arange(0, BP)
    b_best, b_page = tl.full([BP], -float("inf"), tl.float32), o * 0
    for c in range(0, P, BP):
        b_x = tl.load(p_peaks + c + o, mask=c + o < P, other=-float("inf"))
        m_more = b_x > b_best
        b_best, b_page = tl.where(m_more, b_x, b_best), tl.where(m_more, c + o, b_page)
    return tl.max(tl.where(b_best == tl.max(b_best, 0), b_page, 0), 0)


@triton.jit(do_not_specialize=["P", "seeds"])
def page_list_kernel(
    p_query, p_key, p_starts, p_stops, p_diagonal, p_rows, p_peaks, p_list, p_count,
    alpha, gamma, scale, softcap, heads, groups, T, S, P, n, query_b, query_h, query_t,
    key_b, key_g, key_s, starts_b, stops_b, diagonal_b, seeds,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, EDGE: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BP: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Lists the pages that may have weight, (B·G, P), and counts them. The bounds of the others
    become −inf.

    `seeds` rows, spread evenly, choose a page each. The largest score of each column of these pages
    counts, so that no key counts twice.
    """
    g = (tl.program_id(0) % groups).to(tl.int64)
    b = (tl.program_id(0) // groups).to(tl.int64)
    o_row, h, t, m_row = group_rows(b, g, heads, groups, T, BM)
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha, b_gamma, b_scale, _, b_sink = parameters
    rows = load_queries(
        parameters, p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b,
        0, t, m_row, 0, 1, FEATURES,
    )  # fmt: skip
    # (BM, BD)
    b_query = load_group(p_query, b, h, t, query_b, query_h, query_t, D, BD)
    keys = (p_key + b * key_b + g * key_g, key_s, S)
    b_most = tl.full([BM, PAGE], -float("inf"), tl.float32)
    b_norm = tl.zeros([PAGE], tl.float32)
    repeat = heads // groups
    for i in range(seeds):
        row = (b * heads + g * repeat) * T + i * (repeat * T) // seeds
        page = highest_page(p_peaks + row * P, P, BS)
        b_x, b_key = page_distances(b_query, page, keys, rows, softcap, EDGE, FEATURES, D, BD)
        b_most = larger(b_most, b_x)
        b_norm = tl.maximum(b_norm, norms(b_key))

    if SINKS & FEATURES:
        b_sink = ((b_alpha - 1) / b_gamma * b_sink)[:, None]
    else:
        b_sink = tl.full([BM, 1], -float("inf"), tl.float32)
    top = larger(row_max(b_most), tl.sum(b_sink, 1))
    is_empty, is_infinite = top == -float("inf"), top == float("inf")
    peak = tl.where(is_empty, 0.0, tl.where(is_infinite, LARGEST, top))
    least = tl.exp((1 - b_alpha) * tl.log(S + 1.0)) * (1 - 1e-3)
    done = is_empty | is_infinite | (top != top) | ~m_row
    base = subset_base(
        b_most - peak[:, None], tl.full([BM, PAGE], -float("inf"), tl.float32),
        b_sink - peak[:, None], least, b_alpha, done, S + 1.0, TOLERANCE, KIND,
    )  # fmt: skip
    # The base is right to less than this, and the scores to less than this margin.
    base = tl.where(is_infinite, 0.0, base * (1 + 2.0**-10))
    margin = norms(b_query) * tl.max(b_norm, 0) * tl.abs(b_scale) * ((D + 8) * ROUNDING)
    margin = margin * (b_alpha - 1) / b_gamma + tl.abs(peak) * (4 * ROUNDING)
    if RESCALED & FEATURES:
        margin += tl.abs(peak) * 2.0**-18
    limit = peak - base - tl.where(is_infinite, 0.0, margin)
    limit = tl.where(is_empty, -float("inf"), limit)

    count = 0
    p_list += (b * groups + g) * P
    for c in range(0, P, BP):
        o_page = c + tl.arange(0, BP)
        m_pair = m_row[:, None] & (o_page < P)[None, :]
        p_tile = p_peaks + o_row[:, None] * P + o_page[None, :]
        # (BM, BP)
        b_bound = tl.load(p_tile, mask=m_pair, other=-float("inf"))
        # NaN is neither below nor hidden.
        m_kept = ~(b_bound < limit[:, None]) & (b_bound != -float("inf"))
        b_kept = tl.max((m_pair & m_kept).to(tl.int32), 0)
        b_none = tl.full([BM, BP], -float("inf"), tl.float32)
        tl.store(p_tile, b_none, mask=m_pair & (b_kept == 0)[None, :])
        tl.store(p_list + count + tl.cumsum(b_kept, 0) - 1, o_page, mask=b_kept > 0)
        count += tl.sum(b_kept, 0)
    tl.store(p_count + b * groups + g, count)


@triton.jit(do_not_specialize=["P", "splits"])
def page_scores_kernel(
    p_query, p_key, p_starts, p_stops, p_diagonal, p_rows, p_list, p_count, p_scores, p_peaks,
    alpha, gamma, scale, softcap, heads, groups, T, S, P, n, query_b, query_h, query_t,
    key_b, key_g, key_s, starts_b, stops_b, diagonal_b, splits,
    FEATURES: tl.constexpr, EDGE: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """x of all keys in the listed pages, (n, P·PAGE), and the largest of each page, (n, P).

    One of `splits` programs for a group of heads. Without a list it is all pages.
    """
    split = tl.program_id(0) % splits
    g = (tl.program_id(0) // splits % groups).to(tl.int64)
    b = (tl.program_id(0) // splits // groups).to(tl.int64)
    count = P
    if p_list is not None:
        count = tl.load(p_count + b * groups + g)
        p_list += (b * groups + g) * P
    o_row, h, t, m_row = group_rows(b, g, heads, groups, T, BM)
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    rows = load_queries(
        parameters, p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b,
        0, t, m_row, 0, 1, FEATURES,
    )  # fmt: skip
    # (BM, BD)
    b_query = load_group(p_query, b, h, t, query_b, query_h, query_t, D, BD)
    keys = (p_key + b * key_b + g * key_g, key_s, S)
    p_scores += o_row[:, None] * P * PAGE + tl.arange(0, PAGE)[None, :]
    for i in range(split, count, splits):
        page = i
        if p_list is not None:
            page = tl.load(p_list + i)
        b_x, _ = page_distances(b_query, page, keys, rows, softcap, EDGE, FEATURES, D, BD)
        tl.store(p_scores + page * PAGE, b_x, mask=m_row[:, None])
        tl.store(p_peaks + o_row * P + page, row_max(b_x), mask=m_row)
