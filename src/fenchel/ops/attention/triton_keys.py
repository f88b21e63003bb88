"""The gradients of a block of RK keys and values, from the queries alone that give them weight."""

import triton
import triton.language as tl

from .triton_rows import gather_tile
from .triton_scores import (
    DROPOUT,
    distances_tile,
    kept_tile,
    load_parameters,
    load_queries,
    narrow_dot,
)
from .triton_threshold import weights_tile

LEAD = tl.constexpr(16)
"""Blocks of keys that are first in line."""


@triton.jit
def add_queries(
    b_key_sum, b_value_sum, b_key, b_value, o_key, m_key, o_t, m_t, head, p_rows, p_seed, p_mask,
    places, state, numbers, strides,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The gradients of the keys and values with the queries o_t of a head more."""
    p_query, p_grad = head
    p_starts, p_stops, p_diagonal = places
    p_state, p_mean, first_row, n, S = state
    alpha, gamma, scale, softcap, dropout = numbers
    query_t, grad_t, mask_t, mask_s = strides
    o_t = tl.where(m_t, o_t, 0)
    o_row = first_row + o_t
    # (C, BD) and (C, BE)
    b_query = gather_tile(p_query, o_t, m_t, query_t, D, BD)
    b_grad = gather_tile(p_grad, o_t, m_t, grad_t, E, BE)
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    rows = load_queries(
        parameters, p_starts, p_stops, p_diagonal, p_mask, o_t, m_t, mask_t, 1, FEATURES
    )
    top = tl.load(p_state + o_row)[:, None]
    base = tl.load(p_state + n + o_row)[:, None]
    rest = tl.load(p_state + 2 * n + o_row)[:, None]
    mean = tl.load(p_mean + o_row)[:, None]
    # (C, RK)
    b_zero = tl.zeros([o_t.shape[0], o_key.shape[0]], tl.float32)
    b_dot = narrow_dot(b_query, tl.trans(b_key), b_zero)
    m_pair = m_t[:, None] & m_key[None, :]
    b_t, b_steepness = distances_tile(
        b_dot, top, rows, o_key[None, :], mask_s, m_pair, softcap, True, FEATURES
    )
    b_p, b_w = weights_tile(b_t, base, rest, parameters[0][:, None], KIND)
    b_dp = narrow_dot(b_grad, tl.trans(b_value), b_zero)
    if DROPOUT & FEATURES:
        b_kept = kept_tile(tl.load(p_seed), (o_row * S)[:, None] + o_key[None, :], dropout)
        b_p *= b_kept
        b_dp *= b_kept
    b_value_sum = narrow_dot(tl.trans(b_p.to(b_grad.dtype)), b_grad, b_value_sum)
    b_ds = tl.where(b_w > 0, b_w * (b_dp - mean), 0.0) * b_steepness
    b_ds *= (parameters[2] / parameters[1])[:, None]
    return narrow_dot(tl.trans(b_ds.to(b_query.dtype)), b_query, b_key_sum), b_value_sum


@triton.jit
def early_first(blocks):
    """The block of a program, and which of the rows of blocks is its own: the first blocks of all
    rows come first, because in causal attention they have the most queries."""
    i = tl.program_id(0)
    rows = tl.num_programs(0) // blocks
    lead = tl.minimum(LEAD, blocks)
    rest = tl.maximum(blocks - lead, 1)
    later = i - lead * rows
    is_early = later < 0
    return tl.where(is_early, i // rows, lead + later % rest), tl.where(
        is_early, i % rows, later // rest
    )


@triton.jit
def keys_backward_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed, p_grad, p_state,
    p_mean, p_list, p_count, p_end, p_whole, p_key_grad, p_value_grad,
    alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    room, first_head,
    KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, RK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Sums over all heads of a group, from `first_head` on; not of groups that are dense."""
    key_blocks = tl.cdiv(S, RK)
    rep = heads // groups
    block, z = early_first(key_blocks)
    z = first_head // rep + z.to(tl.int64)
    if tl.load(p_whole + z) > 0:
        return
    b, g = z // groups, z % groups
    o_key = block * RK + tl.arange(0, RK)
    m_key = o_key < S
    b_key = gather_tile(p_key + b * key_b + g * key_g, o_key, m_key, key_s, D, BD)
    b_value = gather_tile(p_value + b * value_b + g * value_g, o_key, m_key, value_s, E, BE)
    places = (p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b)
    numbers = (alpha, gamma, scale, softcap, dropout)
    strides = (query_t, grad_t, mask_t, mask_s)
    b_key_sum = tl.zeros([RK, BD], tl.float32)
    b_value_sum = tl.zeros([RK, BE], tl.float32)
    o_c = tl.arange(0, C)
    for i in range(rep):
        h = g * rep + i
        head = (p_query + b * query_b + h * query_h, p_grad + b * grad_b + h * grad_h)
        state = (p_state, p_mean, (b * heads + h) * T, n, S)
        row = b * heads + h - first_head
        place = row * key_blocks + block
        last = tl.load(p_end + place)
        first = last - tl.load(p_count + place)
        p_queries = p_list + row * room + o_c
        o_next = tl.load(p_queries + first, mask=first + o_c < last, other=0)
        for c in range(first, last, C):
            o_t, m_t = o_next, c + o_c < last
            o_next = tl.load(p_queries + c + C, mask=c + C + o_c < last, other=0)
            b_key_sum, b_value_sum = add_queries(
                b_key_sum, b_value_sum, b_key, b_value, o_key, m_key, o_t, m_t, head, p_rows,
                p_seed, p_mask, places, state, numbers, strides, KIND, FEATURES, D, E, BD, BE,
            )  # fmt: skip
    o_row = (z * S + o_key).to(tl.int64)[:, None]
    o_d, o_e = tl.arange(0, BD)[None, :], tl.arange(0, BE)[None, :]
    b_key_sum = b_key_sum.to(p_key_grad.dtype.element_ty)
    b_value_sum = b_value_sum.to(p_value_grad.dtype.element_ty)
    tl.store(p_key_grad + o_row * D + o_d, b_key_sum, mask=m_key[:, None] & (o_d < D))
    tl.store(p_value_grad + o_row * E + o_e, b_value_sum, mask=m_key[:, None] & (o_e < E))
