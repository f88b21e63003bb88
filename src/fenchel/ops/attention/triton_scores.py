"""The scores of a tile of queries and keys, which keys each query sees, and what dropout keeps.

Every kernel takes them from here, so that forward and backward see the same numbers. Blocks may lie
either way, (queries, keys) or (keys, queries): what belongs to a query or to a key broadcasts.

FEATURES is a sum of the constants below.
"""

import triton
import triton.language as tl

from .._triton.root import expm1_over, larger
from . import sizes

PER_ROW = tl.constexpr(1)
"""α, γ and the scale differ from query to query."""
SOFTCAP = tl.constexpr(2)
SLOPES = tl.constexpr(4)
SINKS = tl.constexpr(8)
MASKED = tl.constexpr(16)
"""A mask of booleans."""
ADDED = tl.constexpr(32)
"""A mask that is added to the scores."""
DROPOUT = tl.constexpr(64)

HAS_MASK = tl.constexpr(MASKED.value + ADDED.value)
RESCALED = tl.constexpr(SOFTCAP.value + SLOPES.value + ADDED.value)
"""With one of these a score is more than a multiple of the product."""
CHANGED = tl.constexpr(RESCALED.value + MASKED.value)
"""With one of these x is not a multiple of the product for all that a query sees."""


BLOCK = tl.constexpr(sizes.BLOCK)
"""Every tile's number of queries divides it."""


SIDE = tl.constexpr(16)
"""Heads whose blocks lie side by side: so few that their keys stay in the cache."""


@triton.jit
def is_chosen(p_flags, o, CLASS: tl.constexpr):
    """Whether a flag is that of the class, or any if that is 0; true without flags."""
    if p_flags is None:
        return tl.full([], 1, tl.int1)
    elif CLASS == 0:
        return tl.load(p_flags + o) != 0
    else:
        return tl.load(p_flags + o) == CLASS


@triton.jit
def own_blocks(total, p_whole, count):
    """Where the blocks of this program begin and end, of so many in all. It has none if none of the
    `count` groups of heads is dense."""
    each = tl.cdiv(total, tl.num_programs(0))
    first = tl.program_id(0) * each
    end = tl.minimum(first + each, total)
    if p_whole is None:
        return first, end
    else:
        found = 0
        for i in range(0, count, 1024):
            o = i + tl.arange(0, 1024)
            found = tl.maximum(found, tl.max(tl.load(p_whole + o, mask=o < count, other=0), 0))
        return first, tl.where(found > 0, end, first)


@triton.jit
def locate(index, parts, heads, rows):
    """The batch and head of the index-th block, and its place among the blocks of the head.

    The blocks of SIDE of the `rows` heads lie side by side, first places first: if these are the
    longest ones, what is started last is short.
    """
    first = index // (parts * SIDE) * SIDE
    side = tl.minimum(SIDE, rows - first)
    index -= first * parts
    row = (first + index % side).to(tl.int64)
    return row // heads, row % heads, index // side


@triton.jit
def tanh(x):
    """tanh x to a few roundings of its value."""
    near = larger(tl.minimum(x, 10.0, propagate_nan=tl.PropagateNan.ALL), -10.0)  # it is ±1 beyond
    growth = 2 * near * expm1_over(2 * near)
    return growth / (growth + 2)


_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def dot(b_a, b_b, b_sum):
    """b_sum + a b: the products of the given types are exact, their sum is in float32.

    In float32 a tile is added up for itself: sums of thousands of equal products, one after the
    other, would all be rounded the same way. Triton makes one sum of a product and an addition
    again, but not of a product and `fma`.
    """
    if b_a.dtype == tl.float32:
        b_tile = tl.dot(b_a, b_b, tl.zeros_like(b_sum), input_precision="ieee")
        return tl.fma(b_tile, tl.full(b_sum.shape, 1.0, tl.float32), b_sum)
    else:
        if _INTERPRETED:  # where bfloat16 has no products
            b_a, b_b = b_a.to(tl.float32), b_b.to(tl.float32)
        return tl.dot(b_a, b_b, b_sum)


@triton.jit
def narrow_dot(b_a, b_b, b_sum):
    """The same for vectors of at most 64 entries in float32: each product is made of three on
    tensor cores, and lacks its last two bits. Wider ones would not fit the registers."""
    if _INTERPRETED:
        return dot(b_a, b_b, b_sum)
    else:
        return tl.dot(b_a, b_b, b_sum, input_precision="tf32x3")


@triton.jit
def load_tile(
    p_x, first, stride, n, EDGE: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr
):
    """R rows from the first on, (R, BD), of a matrix (n, D); with EDGE some may be past its end."""
    o, o_d = tl.arange(0, R), tl.arange(0, BD)
    p_tile = p_x + tl.full([], first, tl.int64) * stride + (o[:, None] * stride + o_d[None, :])
    if EDGE:
        return tl.load(p_tile, mask=(first + o < n)[:, None] & (o_d < D)[None, :], other=0.0)
    elif D < BD:
        return tl.load(p_tile, mask=(o_d < D)[None, :], other=0.0)
    else:
        return tl.load(p_tile)


@triton.jit
def finite(b_x):
    """The tile with zeros for entries that are not finite, so that weights of zero hide them."""
    return tl.where(tl.abs(b_x.to(tl.float32)) < float("inf"), b_x, 0.0).to(b_x.dtype)


@triton.jit
def load_row_tile(p_x, o_row, stride, D: tl.constexpr, BD: tl.constexpr):
    """The rows o_row, (R, BD), of a matrix (n, D)."""
    o_d = tl.arange(0, BD)[None, :]
    p_tile = p_x + o_row.to(tl.int64)[:, None] * stride + o_d
    if D < BD:
        return tl.load(p_tile, mask=o_d < D, other=0.0)
    else:
        return tl.load(p_tile)


@triton.jit
def store_tile(p_x, b_x, o_row, m_row, D: tl.constexpr, BD: tl.constexpr):
    """Stores (R, BD) to the rows o_row of a contiguous matrix (n, D), rounded to its type."""
    o_d = tl.arange(0, BD)[None, :]
    p_tile = p_x + o_row.to(tl.int64)[:, None] * D + o_d
    tl.store(p_tile, b_x.to(p_x.dtype.element_ty), mask=m_row[:, None] & (o_d < D))


@triton.jit
def load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES: tl.constexpr):
    """α, γ, scale, slope and sink of each query: of the rows o_row of (5, n), or the numbers."""
    one = tl.full(o_row.shape, 1.0, tl.float32)
    b_alpha, b_gamma, b_scale, b_slope, b_sink = one * alpha, one * gamma, one * scale, one, one
    if PER_ROW & FEATURES:
        b_alpha = tl.load(p_rows + o_row)
        b_gamma = tl.load(p_rows + n + o_row)
        b_scale = tl.load(p_rows + 2 * n + o_row)
    if SLOPES & FEATURES:
        b_slope = tl.load(p_rows + 3 * n + o_row)
    if SINKS & FEATURES:
        b_sink = tl.load(p_rows + 4 * n + o_row)
    return b_alpha, b_gamma, b_scale, b_slope, b_sink


@triton.jit
def load_queries(
    parameters, p_starts, p_stops, p_diagonal, p_mask, o_t, m_t, mask_stride,
    AXIS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """What `distances_tile` needs of each query, with the keys along AXIS. One that is not there
    sees nothing."""
    alpha, gamma, scale, slope, _ = parameters
    # x is this factor of the number that `scores_tile` gives.
    factor = (alpha - 1) / gamma
    if not RESCALED & FEATURES:
        factor *= scale
    diagonal = tl.load(p_diagonal + o_t, mask=m_t, other=0)
    start = tl.load(p_starts + o_t, mask=m_t, other=0)
    stop = tl.load(p_stops + o_t, mask=m_t, other=0)
    if HAS_MASK & FEATURES:
        p_mask = tl.expand_dims(p_mask + o_t.to(tl.int64) * mask_stride, AXIS)
    else:
        p_mask = 0
    return (
        tl.expand_dims(factor, AXIS),
        tl.expand_dims(scale, AXIS),
        tl.expand_dims(slope, AXIS),
        tl.expand_dims(diagonal, AXIS),
        tl.expand_dims(start, AXIS),
        tl.expand_dims(stop, AXIS),
        p_mask,
    )


@triton.jit
def scores_tile(
    b_dot, scale, slope, diagonal, o_key, p_mask, m_pair, softcap, FEATURES: tl.constexpr
):
    """z of each pair, and its derivative in scale · product.

    Without cap, slopes and added mask it is the product alone, and the factor of x has the scale.

    Args:
        b_dot: query · key.
        scale, slope, diagonal: of each query.
        o_key: the key's place.
        p_mask: pointers to the entries of the mask, if there is one.
        m_pair: whether there are such a query and such a key.
        softcap: the cap, if there is one.
    """
    b_z, b_steepness = b_dot, tl.full(b_dot.shape, 1.0, tl.float32)
    if RESCALED & FEATURES:
        b_z = scale * b_z
    if SOFTCAP & FEATURES:
        b_tanh = tanh(b_z / softcap)
        b_z = softcap * b_tanh
        b_steepness = 1 - b_tanh * b_tanh
    if SLOPES & FEATURES:
        b_z -= slope * tl.abs(diagonal - o_key).to(tl.float32)
    if ADDED & FEATURES:
        b_z += tl.load(p_mask, mask=m_pair, other=0.0).to(tl.float32)
    return b_z, b_steepness


@triton.jit
def hide(b_x, start, stop, o_key, p_mask, m_pair, EDGE: tl.constexpr, FEATURES: tl.constexpr):
    """The tile with −inf for each pair that does not count. Without EDGE the whole tile is inside
    every query's interval from start to stop."""
    if EDGE:
        b_x = tl.where((o_key >= start) & (o_key < stop), b_x, -float("inf"))
    if MASKED & FEATURES:
        b_x = tl.where(tl.load(p_mask, mask=m_pair, other=0) != 0, b_x, -float("inf"))
    return b_x


@triton.jit
def distances_tile(
    b_dot, top, rows, o_key, mask_stride, m_pair, softcap,
    EDGE: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """x − top of each pair, −inf for one that does not count, and the second of `scores_tile`.

    `rows` has for each query the factor, scale, slope, diagonal, start and stop, and a pointer to
    its row of the mask.
    """
    factor, scale, slope, diagonal, start, stop, p_mask = rows
    if HAS_MASK & FEATURES:
        p_mask += o_key.to(tl.int64) * mask_stride
    b_z, b_steepness = scores_tile(
        b_dot, scale, slope, diagonal, o_key, p_mask, m_pair, softcap, FEATURES
    )
    b_x = tl.fma(b_z, tl.broadcast_to(factor, b_z.shape), tl.broadcast_to(-top, b_z.shape))
    return hide(b_x, start, stop, o_key, p_mask, m_pair, EDGE, FEATURES), b_steepness


@triton.jit
def kept_tile(seed, o_pair, dropout):
    """What dropout multiplies each pair by: 0, or 1/(1 − dropout).

    The random number of a pair is that of `tl.rand(seed, o_pair)`, with the upper half of the
    64-bit place ((b H + h) T + t) S + j as the second word of the counter. So it does not depend
    on how a kernel cuts the pairs into tiles.
    """
    low = (o_pair & 0xFFFFFFFF).to(tl.uint32)
    high = (o_pair >> 32).to(tl.uint32)
    b_random, _, _, _ = tl.philox(seed, low, high, high * 0, high * 0)
    return tl.where(tl.uint_to_uniform_float(b_random) >= dropout, 1 / (1 - dropout), 0.0)


@triton.jit
def search(p_x, n, value):
    """How many of n numbers that never decrease are less than the value."""
    low, high = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32) + n
    while low < high:
        middle = (low + high) // 2
        is_less = tl.load(p_x + middle) < value
        low = tl.where(is_less, middle + 1, low)
        high = tl.where(is_less, high, middle)
    return low


@triton.jit
def inner_range(begin, end, inner, inner_end):
    """The tiles from begin to end as `key_ranges` gives them, if those from inner to inner_end
    have no edge."""
    end = tl.maximum(end, begin)
    inner, inner_end = tl.maximum(inner, begin), tl.minimum(inner_end, end)
    has_inner = inner < inner_end
    inner, inner_end = tl.where(has_inner, inner, end), tl.where(has_inner, inner_end, end)
    before = inner - begin
    return inner, inner_end, begin, before, before + end - inner_end


@triton.jit
def key_ranges(p_starts, p_stops, first, last, BN: tl.constexpr):
    """The tiles of BN keys that queries first to last see. All of these queries see all keys of the
    inner tiles; the other tiles, on both sides, have an edge.

    Returns:
        Start and stop of the inner tiles, the first tile of all, how many edge tiles come before
        the inner ones, and how many edge tiles there are. Starts and stops never decrease.
    """
    return inner_range(
        tl.load(p_starts + first) // BN,
        tl.cdiv(tl.load(p_stops + last), BN),
        tl.cdiv(tl.load(p_starts + last), BN),
        tl.load(p_stops + first) // BN,
    )


@triton.jit
def query_ranges(p_starts, p_stops, first, T, BM: tl.constexpr, BN: tl.constexpr):
    """The blocks of BM queries that see any of the BN keys from the first on, as `key_ranges`."""
    return inner_range(
        search(p_stops, T, first + 1) // BM,
        tl.cdiv(search(p_starts, T, first + BN), BM),
        tl.cdiv(search(p_stops, T, first + BN), BM),
        search(p_starts, T, first + 1) // BM,
    )


@triton.jit
def edge_tile(i, begin, before, inner_end):
    """The place of the i-th tile with an edge."""
    return tl.where(i < before, begin + i, inner_end + i - before)
