"""Marks, one bit each, as lists: the candidates of a group of queries, and the queries that give
weight to a block of keys. What has no list that fits is dense."""

import triton
import triton.language as tl

from .triton_candidates import WORDS

_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def count_bits(x):
    """How many bits of each word are set."""
    if _INTERPRETED:
        x = x.to(tl.uint32, bitcast=True)
        x = x - ((x >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F
        return ((x * 0x01010101) >> 24).to(tl.int32)
    else:
        return tl.inline_asm_elementwise(
            "popc.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def store_marks(p_list, b_word, b_place, o_word, room, FOR_KEYS: tl.constexpr):
    """Stores what the marks of some words stand for, from b_place on, as far as there is room."""
    for _ in range(tl.max(count_bits(b_word), 0)):
        b_bit = count_bits((b_word & -b_word) - 1)
        if FOR_KEYS:
            b_found = o_word * 32 + b_bit
        else:
            b_found = o_word // 4 * 128 + b_bit // 2 * 8 + o_word % 4 * 2 + b_bit % 2
        tl.store(p_list + b_place, b_found, mask=(b_word != 0) & (b_place < room))
        b_place += (b_word != 0).to(tl.int32)
        b_word = b_word & (b_word - 1)


@triton.jit
def list_kernel(
    p_bits, p_list, p_count, p_unfit, p_starts, p_stops, heads, T, starts_b, stops_b,
    groups, words, first_head, cap, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The places of the marks of each group of R queries in p_list (heads, groups, cap), and how
    many they are: cap + 1 if there is no room for them or the group is unfit, and twice that if it
    is so in the second class. Words lie (groups, words) in each head
    from `first_head` on."""
    g, head = tl.program_id(0), tl.program_id(1)
    z = (first_head + head).to(tl.int64)
    p_bits += (head.to(tl.int64) * groups + g) * words
    first = tl.load(p_starts + z // heads * starts_b + g * R) // 128 * WORDS
    last = tl.load(p_stops + z // heads * stops_b + tl.minimum(g * R + R, T) - 1)
    last = tl.cdiv(last, 128) * WORDS
    unfit = tl.load(p_unfit + z * groups + g)
    total = 0
    last = tl.where(unfit > 0, first, last)
    p_list += (z * groups + g) * cap
    for c in range(first, last, W):
        o = c + tl.arange(0, W)
        b_word = tl.load(p_bits + o, mask=o < last, other=0)
        b_count = count_bits(b_word)
        store_marks(p_list, b_word, total + tl.cumsum(b_count, 0) - b_count, o, cap, False)
        total += tl.sum(b_count, 0)
    total = tl.minimum(total, cap + 1)
    tl.store(p_count + z * groups + g, tl.where(unfit > 0, unfit * (cap + 1), total))


@triton.jit
def count_kernel(p_bits, p_count, words, W: tl.constexpr):
    """How many marks each block of keys has; its words lie side by side."""
    place = tl.program_id(0)
    b_sum = tl.zeros([W], tl.int32)
    for c in range(0, words, W):
        o = c + tl.arange(0, W)
        b_sum += count_bits(
            tl.load(p_bits + place.to(tl.int64) * words + o, mask=o < words, other=0)
        )
    tl.store(p_count + place, tl.sum(b_sum, 0))


@triton.jit
def list_queries_kernel(
    p_bits, p_count, p_list, p_end, p_whole, blocks, words, room, first_head, share,
    W: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """The queries that the marks of each block of keys stand for. The lists of a head lie one
    behind the other; `p_end` says where each one ends. Without room for them the group of `share`
    heads becomes dense."""
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b_before = tl.zeros([BW], tl.int32)
    for c in range(0, block, BW):
        o = c + tl.arange(0, BW)
        b_before += tl.load(p_count + head * blocks + o, mask=o < block, other=0)
    place = tl.sum(b_before, 0)
    end = place + tl.load(p_count + head * blocks + block)
    tl.store(p_end + head * blocks + block, end)
    tl.atomic_max(p_whole + (first_head + head) // share, 1, mask=end > room, sem="relaxed")
    p_bits += (head * blocks + block) * words
    c = 0
    while (place < end) & (c < words):
        o = c + tl.arange(0, W)
        b_word = tl.load(p_bits + o, mask=o < words, other=0)
        b_count = count_bits(b_word)
        first = place + tl.cumsum(b_count, 0) - b_count
        store_marks(p_list + head * room, b_word, first, o, room, True)
        place += tl.sum(b_count, 0)
        c += W


@triton.jit
def choose_kernel(
    p_count, p_dense, p_whole, heads, groups, T, cap,
    R: tl.constexpr, BM: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Which blocks of BM queries are dense: some group of theirs has more than `cap` candidates.
    Where more than an eighth of the blocks that share keys are dense, all of them become so.

    Writes which blocks are dense, and which groups of heads have dense blocks: 1, or 2 if a group
    of queries is unfit in the second class. The count of each group in a dense block becomes more
    than `cap`.
    """
    z = tl.program_id(0).to(tl.int64)
    rep = heads // groups
    row_groups, blocks = tl.cdiv(T, R), tl.cdiv(T, BM)
    o_part = tl.arange(0, BM // R)[None, :]
    total, largest = 0, 0
    for head in range(z * rep, z * rep + rep):
        for c in range(0, blocks, W):
            o = (c + tl.arange(0, W))[:, None] * (BM // R) + o_part
            b_count = tl.load(p_count + head * row_groups + o, mask=o < row_groups, other=0)
            b_most = tl.max(b_count, 1)
            total += tl.sum((b_most > cap).to(tl.int32), 0)
            largest = tl.maximum(largest, tl.max(b_most, 0))
    whole = total * 8 > blocks * rep
    tl.store(p_whole + z, tl.where(total > 0, tl.where(largest > cap + 1, 2, 1), 0))
    tl.debug_barrier()
    for head in range(z * rep, z * rep + rep):
        for c in range(0, blocks, W):
            o_block = c + tl.arange(0, W)
            m_block = o_block < blocks
            o = o_block[:, None] * (BM // R) + o_part
            b_count = tl.load(p_count + head * row_groups + o, mask=o < row_groups, other=0)
            b_most = tl.max(b_count, 1)
            b_dense = ((b_most > cap) | whole).to(tl.int32) + (b_most > cap + 1).to(tl.int32)
            b_dense = tl.where(m_block, b_dense, 0)
            tl.store(p_dense + head * blocks + o_block, b_dense, mask=m_block)
            m_group = (b_dense > 0)[:, None] & (o < row_groups)
            tl.store(p_count + head * row_groups + o, cap + 1, mask=m_group)
