"""Which keys can have weight: for each group of R queries the list of its candidates.

1. `bound_kernel` keeps the largest score of each class of keys (a key's place modulo BN). The
   threshold of these few scores is at most that of the complete row.
2. `mark_kernel` computes the scores again and marks the keys above that bound: a key without a mark
   has weight zero for each query of the group, for certain.
3. `list_kernel` turns the marks, one bit per key, into lists.
"""

import triton
import triton.language as tl

from .._triton.root import larger, row_max
from .triton_scores import (
    RESCALED,
    SINKS,
    edge_tile,
    hide,
    key_ranges,
    load_parameters,
    load_queries,
    load_row_tile,
    load_tile,
    narrow_dot,
    scores_tile,
)
from .triton_threshold import NARROW, newton, weights_tile

_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
WORDS = tl.constexpr(4)
"""Words of 32 bits for a tile of 128 keys."""


@triton.jit
def hidden_tile(
    b_query, tile, keys, rows, softcap,
    EDGE: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """z of a tile, (BM, BN), and −inf for what a query does not see."""
    p_key, key_stride, mask_stride, S = keys
    factor, scale, slope, diagonal, start, stop, p_mask = rows
    o_key = tile * BN + tl.arange(0, BN)[None, :]
    m_key = o_key < S
    # (BN, BD)
    b_key = load_tile(p_key, tile * BN, key_stride, S, EDGE, D, BN, BD)
    b_dot = narrow_dot(b_query, tl.trans(b_key), tl.zeros([b_query.shape[0], BN], tl.float32))
    b_z, _ = scores_tile(b_dot, scale, slope, diagonal, o_key, p_mask, m_key, softcap, FEATURES)
    return hide(b_z, start, stop, o_key, p_mask, m_key, EDGE, FEATURES)


@triton.jit
def norm_kernel(
    p_key, p_value, p_norm, groups, S, key_b, key_g, key_s, value_b, value_g, value_s,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The largest finite norm of each block of BN keys; infinity if a value of theirs is not
    finite."""
    block, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p_key += z // groups * key_b + z % groups * key_g
    p_value += z // groups * value_b + z % groups * value_g
    b_key = load_tile(p_key, block * BN, key_s, S, True, D, BN, BD).to(tl.float32)
    b_norm = tl.sqrt(tl.sum(b_key * b_key, 1))
    b_norm = tl.where(b_norm < float("inf"), b_norm, 0.0)
    b_value = load_tile(p_value, block * BN, value_s, S, True, E, BN, BE).to(tl.float32)
    b_value = tl.where(tl.abs(b_value) < float("inf"), 0.0, float("inf"))
    norm = larger(tl.max(b_norm, 0), tl.max(tl.max(b_value, 1), 0))
    tl.store(p_norm + z * tl.num_programs(0) + block, norm)


@triton.jit
def bound_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_norm, p_state, p_limit, p_unfit, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, norms,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, R: tl.constexpr,
    NORMS: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The largest x of each query, a base that is at least the true one, and the z that a candidate
    exceeds. A group is unfit if a query has no finite largest score, if a value of the head is not
    finite, or from WIDE keys on so many classes are above its bound that it would have too many
    candidates; and in the second class if α is not between NARROW and 2, or a factor ≤ 0."""
    blocks = tl.cdiv(T, BM)
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest first, if causal
    h = (tl.program_id(0) // blocks % heads).to(tl.int64)
    b = (tl.program_id(0) // blocks // heads).to(tl.int64)
    g = h // (heads // groups)
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)  # the last query again, past the end
    o_row = (b * heads + h) * T + o_t
    ranges = key_ranges(
        p_starts + b * starts_b, p_stops + b * stops_b,
        block * BM, tl.minimum(block * BM + BM, T) - 1, BN,
    )  # fmt: skip
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    b_alpha, b_gamma, _, _, b_sink = parameters
    rows = load_queries(
        parameters, p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b,
        p_mask, o_t, o_t < T, mask_t, 1, FEATURES,
    )  # fmt: skip
    if SINKS & FEATURES:
        b_sink = (b_alpha - 1) / b_gamma * b_sink
    else:
        b_sink = tl.full([BM], -float("inf"), tl.float32)
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    # (BM, BD)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    inner, inner_end, begin, before, edges = ranges
    b_most = tl.full([BM, BN], -float("inf"), tl.float32)
    for i in range(inner, inner_end):
        b_z = hidden_tile(b_query, i, keys, rows, softcap, False, FEATURES, D, BN, BD)
        b_most = larger(b_most, b_z)
    for i in range(edges):
        tile = edge_tile(i, begin, before, inner_end)
        b_z = hidden_tile(b_query, tile, keys, rows, softcap, True, FEATURES, D, BN, BD)
        b_most = larger(b_most, b_z)

    factor = tl.reshape(rows[0], [BM])
    peak = row_max(b_most)  # z
    top = larger(peak * factor, b_sink)
    is_empty = top == -float("inf")
    is_plain = (factor > 0) & (b_alpha <= 2) & (b_alpha >= NARROW)
    b_x = tl.fma(b_most, tl.broadcast_to(factor[:, None], b_most.shape), -top[:, None])
    b_sink -= top
    base = tl.full([BM], 1.0, tl.float32)
    zero = tl.zeros([BM], tl.float32)
    for _ in tl.static_range(STEPS):
        b_p, b_w = weights_tile(b_x, base[:, None], 0.0, b_alpha[:, None], KIND)
        total, slope = tl.sum(b_p, 1), tl.sum(b_w, 1)
        if SINKS & FEATURES:
            sink_p, sink_w = weights_tile(b_sink, base, 0.0, b_alpha, KIND)
            total, slope = total + sink_p, slope + sink_w
        base -= larger(newton(total, slope, b_alpha), zero)
    slack = 1e-5 + 1e-6 / (b_alpha - 1)  # for what the steps round
    base = tl.where(is_empty, 0.0, tl.minimum(base * (1 + slack) + 1e-6, 1.0))
    is_wide = tl.sum((b_x + base[:, None] > 0).to(tl.int32), 1) >= BN // 8 * 7
    # Two kernels may round a product differently.
    p_norm += (b * groups + g) * norms
    b_norm = tl.zeros([NORMS], tl.float32)
    for i in range(0, norms, NORMS):
        o_norm = i + tl.arange(0, NORMS)
        b_norm = tl.maximum(b_norm, tl.load(p_norm + o_norm, mask=o_norm < norms, other=0.0))
    norm = tl.max(b_norm, 0)
    is_finite = tl.abs(top) + norm < float("inf")
    is_fit = (is_finite | is_empty) & is_plain & ~(is_wide & (S >= WIDE))
    b_wide = b_query.to(tl.float32)
    margin = tl.sqrt(tl.sum(b_wide * b_wide, 1)) * norm * (D * 2.0**-22)
    if RESCALED & FEATURES:
        margin = margin * tl.abs(tl.reshape(rows[1], [BM])) + tl.abs(peak) * 2.0**-18
    limit = (top - base) / factor - margin
    limit = tl.where(is_empty, float("inf"), limit)
    m_row = block * BM + tl.arange(0, BM) < T
    tl.store(p_state + o_row, top, mask=m_row)
    tl.store(p_state + n + o_row, base, mask=m_row)
    tl.store(p_limit + o_row, limit, mask=m_row)
    unfit = (~is_fit).to(tl.int32) + (~is_plain & ~is_empty).to(tl.int32)
    unfit = tl.max(tl.reshape(unfit, [BM // R, R]), 1)
    o_group = block * (BM // R) + tl.arange(0, BM // R)
    p_unfit += (b * heads + h) * tl.cdiv(T, R)
    tl.store(p_unfit + o_group, unfit, mask=o_group * R < T)


@triton.jit
def _or(a, b):
    return a | b


_SIGNS = tl.constexpr(
    "{ .reg .b32 d; mov.b32 $0, 0; "
    + " ".join(f"sub.f32 d, $33, ${i}; shf.l.wrap.b32 $0, d, $0, 1;" for i in range(32, 0, -1))
    + " }"
)
"""Bit i is the sign of the last number less the i-th of 32."""
_SIGNS_TYPES = tl.constexpr("=&r," + ",".join(33 * "f"))


@triton.jit
def halve(xs, N: tl.constexpr):
    """Blocks (..., N) as twice as many of half the size; the first entries of all keep order."""
    even, odd = (), ()
    for i in tl.static_range(len(xs)):
        b_even, b_odd = tl.split(tl.reshape(xs[i], [xs[i].shape[0], 4, N // 2, 2]))
        even, odd = even + (b_even,), odd + (b_odd,)  # noqa: RUF005  Triton has no unpacking
    return even + odd


@triton.jit
def marks_of(b_z, limit, BM: tl.constexpr):
    """The marks of a tile of 128 keys as words (BM, 4): bit 2 (j div 8) + j mod 2 of word
    (j div 2) mod 4.

    On the tensor cores' layout a lane holds all the bits of its words, and a bit takes it a
    subtraction and a shift.
    """
    b_z = tl.permute(tl.reshape(b_z, [BM, 16, 4, 2]), [0, 2, 1, 3])
    b_z = tl.reshape(b_z, [BM, 4, 32])
    if _INTERPRETED:
        b_bit = tl.where(b_z > limit[:, None, None], 1 << tl.arange(0, 32)[None, None, :], 0)
        return tl.sum(b_bit, 2)
    else:
        xs = halve(halve(halve(halve(halve((b_z,), 32), 16), 8), 4), 2)
        xs = xs + (tl.broadcast_to(limit[:, None, None], [BM, 4, 1]),)  # noqa: RUF005
        b_word = tl.inline_asm_elementwise(
            _SIGNS, _SIGNS_TYPES, xs, dtype=tl.int32, is_pure=True, pack=1
        )
        return tl.reshape(b_word, [BM, 4])


@triton.jit
def mark_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_limit, p_unfit, p_bits, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, first_head, words,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Marks each key whose z exceeds the limit of a query of the group, in words (groups, words) of
    each head from `first_head` on; not of unfit groups alone."""
    blocks = tl.cdiv(T, BM)
    block = blocks - 1 - tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    h = ((first_head + head) % heads).to(tl.int64)
    b = ((first_head + head) // heads).to(tl.int64)
    g = h // (heads // groups)
    o_group = block * (BM // R) + tl.arange(0, BM // R)
    p_unfit += (b * heads + h) * tl.cdiv(T, R)
    if tl.min(tl.load(p_unfit + o_group, mask=o_group * R < T, other=1), 0) > 0:
        return
    o_t = tl.minimum(block * BM + tl.arange(0, BM), T - 1)
    o_row = (b * heads + h) * T + o_t
    ranges = key_ranges(
        p_starts + b * starts_b, p_stops + b * stops_b,
        block * BM, tl.minimum(block * BM + BM, T) - 1, BN,
    )  # fmt: skip
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    rows = load_queries(
        parameters, p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b,
        p_mask, o_t, o_t < T, mask_t, 1, FEATURES,
    )  # fmt: skip
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    limit = tl.load(p_limit + o_row)
    m_group = (o_group * R < T)[:, None]
    p_bits += (head.to(tl.int64) * tl.cdiv(T, R) + o_group)[:, None] * words
    inner, inner_end, begin, before, edges = ranges
    # Words of four tiles are stored together.
    o_words = tl.arange(0, 4 * WORDS)[None, :]
    b_zero = tl.zeros([BM, WORDS], tl.int32)
    b_0, b_1, b_2, b_3 = b_zero, b_zero, b_zero, b_zero
    for i in range(inner, inner_end):
        b_z = hidden_tile(b_query, i, keys, rows, softcap, False, FEATURES, D, BN, BD)
        b_word, place = marks_of(b_z, limit, BM), (i - inner) % 4
        b_0 = tl.where(place == 0, b_word, b_0)
        b_1 = tl.where(place == 1, b_word, b_1)
        b_2 = tl.where(place == 2, b_word, b_2)
        b_3 = tl.where(place == 3, b_word, b_3)
        if (place == 3) | (i == inner_end - 1):
            b_words = tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3))
            b_words = tl.reshape(b_words, [BM // R, R, WORDS, 4])
            b_words = tl.permute(tl.reduce(b_words, 1, _or), [0, 2, 1])
            o = (i - place) * WORDS + o_words
            tl.store(
                p_bits + o,
                tl.reshape(b_words, [BM // R, 4 * WORDS]),
                mask=m_group & (o < inner_end * WORDS),
            )
    o_one = tl.arange(0, WORDS)[None, :]
    for i in range(edges):
        tile = edge_tile(i, begin, before, inner_end)
        b_z = hidden_tile(b_query, tile, keys, rows, softcap, True, FEATURES, D, BN, BD)
        b_words = tl.reduce(tl.reshape(marks_of(b_z, limit, BM), [BM // R, R, 4]), 1, _or)
        tl.store(p_bits + tile * WORDS + o_one, b_words, mask=m_group)
