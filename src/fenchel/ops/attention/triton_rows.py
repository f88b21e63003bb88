"""Attention of a group of R queries to its candidates alone: keys and values are gathered.

Forward, the scores of all candidates stay in registers while the threshold is solved. Backward, one
pass over the candidates does, because the mean of the values under the weights w = p^(2−α) is kept,
as its distance from the output: so what it rounds is small beside how much the values differ.
"""

import triton
import triton.language as tl

from .triton_backward import (
    ALPHA,
    GAMMA,
    PAIRED,
    SCALE,
    SINK,
    SLOPE,
    add_all,
    add_pair,
    alpha_gradient,
    alpha_sums,
)
from .triton_forward import HALF_SCALE, add_weighted
from .triton_passes import MAX_PASSES
from .triton_scores import (
    DROPOUT,
    SINKS,
    distances_tile,
    kept_tile,
    load_parameters,
    load_queries,
    load_row_tile,
    narrow_dot,
    store_tile,
)
from .triton_threshold import advance, merge_moments, moments, sum_terms, terms, weights_tile


@triton.jit
def gather_tile(p_x, o_row, m_row, stride, D: tl.constexpr, BD: tl.constexpr):
    """The rows o_row that count, (R, BD), of a matrix (n, D); zeros for the others."""
    o_d = tl.arange(0, BD)[None, :]
    p_tile = p_x + o_row.to(tl.int64)[:, None] * stride + o_d
    return tl.load(p_tile, mask=m_row[:, None] & (o_d < D), other=0.0)


@triton.jit
def group_of(index, first_head, T, R: tl.constexpr):
    """The head of a group of R queries, and its place there; the last groups of a head first."""
    blocks = tl.cdiv(T, R)
    head = first_head + index // blocks
    return head.to(tl.int64), blocks - 1 - index % blocks


@triton.jit
def open_group(
    head, group, p_starts, p_stops, p_diagonal, p_rows, p_mask, alpha, gamma, scale, heads, T, n,
    starts_b, stops_b, diagonal_b, mask_t, FEATURES: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The batch, head and queries of a group, and what `distances_tile` needs of them."""
    b, h = head // heads, head % heads
    o = group * R + tl.arange(0, 16)
    m_row = (tl.arange(0, 16) < R) & (o < T)
    o_t = tl.where(m_row, o, T - 1)
    o_row = (b * heads + h) * T + o_t
    parameters = load_parameters(p_rows, o_row, n, alpha, gamma, scale, FEATURES)
    rows = load_queries(
        parameters, p_starts + b * starts_b, p_stops + b * stops_b, p_diagonal + b * diagonal_b,
        p_mask, o_t, m_row, mask_t, 1, FEATURES,
    )  # fmt: skip
    return b, h, o_t, m_row, o_row, parameters, rows


@triton.jit
def candidate_distances(
    b_query, o_key, first, count, top, keys, rows, softcap,
    FEATURES: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """x − top of the candidates o_key, which are the C from the first on, (16, C)."""
    p_key, key_stride, mask_stride, S = keys
    b_t = tl.full([16, C], -float("inf"), tl.float32)
    if first < count:
        m_key = first + tl.arange(0, C) < count
        b_key = gather_tile(p_key, o_key, m_key, key_stride, D, BD)
        b_dot = narrow_dot(b_query, tl.trans(b_key), tl.zeros([16, C], tl.float32))
        o_key = tl.where(m_key, o_key, S)  # which no query sees
        b_t, _ = distances_tile(
            b_dot, top, rows, o_key[None, :], mask_stride, m_key[None, :], softcap, True, FEATURES
        )
    return b_t


@triton.jit
def add_values(
    b_sum, b_mean, b_p, b_w, o_key, first, count, p_value, value_stride, noise,
    KEEP: tl.constexpr, FEATURES: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Σ p v, and with KEEP Σ w v, with the candidates o_key more."""
    if first < count:
        m_key = first + tl.arange(0, C) < count
        b_value = gather_tile(p_value, o_key, m_key, value_stride, E, BE)
        if DROPOUT & FEATURES:
            seed, o_pair, dropout = noise
            b_kept = kept_tile(seed, o_pair + o_key[None, :], dropout)
            b_p *= b_kept
            b_w *= b_kept
        b_sum = add_weighted(b_sum, b_p, b_value, True)
        if KEEP:
            b_mean = narrow_dot(b_w.to(b_value.dtype), b_value, b_mean)
    return b_sum, b_mean


@triton.jit
def tuple_moments(ts, count, base, rest, alpha, KIND: tl.constexpr, C: tl.constexpr):
    """The moments of rows whose first `count` t lie in tiles of C."""
    base, rest, alpha = base[:, None], rest[:, None], alpha[:, None]
    b_terms = terms(ts[0], base, rest, alpha, KIND)
    for i in tl.static_range(1, len(ts)):
        if i * C < count:
            b_terms = merge_moments(b_terms, terms(ts[i], base, rest, alpha, KIND), KIND)
    return sum_terms(b_terms, KIND)


@triton.jit
def tuple_sums(ts, count, base, rest, alpha, KIND: tl.constexpr, C: tl.constexpr):
    """Σ p and Σ w of rows whose first `count` t lie in tiles of C."""
    base, rest, alpha = base[:, None], rest[:, None], alpha[:, None]
    b_p, b_w = weights_tile(ts[0], base, rest, alpha, KIND)
    for i in tl.static_range(1, len(ts)):
        if i * C < count:
            b_more, b_other = weights_tile(ts[i], base, rest, alpha, KIND)
            b_p += b_more
            b_w += b_other
    return tl.sum(b_p, 1), tl.sum(b_w, 1)


@triton.jit
def solve_group(
    index, count, vectors, patterns, p_rows, p_mask, p_seed, lists, results, numbers, sizes,
    strides,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, NC: tl.constexpr,
):  # fmt: skip
    """Output, threshold and state of a group with `count` candidates, and with KEEP Σ w v / Σ w
    less the output."""
    p_query, p_key, p_value = vectors
    p_starts, p_stops, p_diagonal = patterns
    p_list, cap = lists
    p_output, p_tau, p_state, p_mean = results
    alpha, gamma, scale, softcap, dropout = numbers
    heads, groups, T, S, n = sizes
    (
        query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g, value_s,
        starts_b, stops_b, diagonal_b, mask_t, mask_s,
    ) = strides  # fmt: skip
    head, group = group_of(index, 0, T, R)
    place = head * tl.cdiv(T, R) + group
    b, h, o_t, m_row, o_row, parameters, rows = open_group(
        head, group, p_starts, p_stops, p_diagonal, p_rows, p_mask, alpha, gamma, scale, heads, T,
        n, starts_b, stops_b, diagonal_b, mask_t, FEATURES, R,
    )  # fmt: skip
    b_alpha, b_gamma, _, _, b_sink = parameters
    g = h // (heads // groups)
    p_list += place * cap
    keys = (p_key + b * key_b + g * key_g, key_s, mask_s, S)
    p_value += b * value_b + g * value_g
    top = tl.load(p_state + o_row)
    base = tl.load(p_state + n + o_row)
    is_empty = top == -float("inf")
    peak = tl.where(is_empty, 0.0, top)
    # (16, BD)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    # The whole list first, so that nothing waits for a part of it and then for its keys.
    o_keys, ts = (), ()
    for i in tl.static_range(NC):
        o = i * C + tl.arange(0, C)
        o_key = tl.load(p_list + o, mask=o < count, other=0)
        o_keys = o_keys + (o_key,)  # noqa: RUF005  Triton has no unpacking
    for i in tl.static_range(NC):
        b_t = candidate_distances(
            b_query, o_keys[i], i * C, count, peak[:, None], keys, rows, softcap, FEATURES, D, C, BD
        )
        ts = ts + (b_t,)  # noqa: RUF005
    if SINKS & FEATURES:
        b_sink = ((b_alpha - 1) / b_gamma * b_sink - peak)[:, None]
    else:
        b_sink = tl.full([16, 1], -float("inf"), tl.float32)

    least = tl.exp((1 - b_alpha) * tl.log(S + 1.0)) * (1 - 1e-3)
    rest, low, high, solved, steps = base * 0, least, base * 0 + 1, is_empty | ~m_row, 0
    while (steps < MAX_PASSES) & (tl.min(solved.to(tl.int32), 0) == 0):
        sums = tuple_moments(ts, count, base, rest, b_alpha, KIND, C)
        if SINKS & FEATURES:
            sums = merge_moments(sums, moments(b_sink, base, rest, b_alpha, KIND), KIND)
        base, rest, low, high, solved = advance(
            sums, base, rest, low, high, solved, b_alpha, S + 1.0, TOLERANCE, KIND
        )
        steps += 1

    total, mass = tuple_sums(ts, count, base, rest, b_alpha, KIND, C)
    if SINKS & FEATURES:
        b_p, b_w = weights_tile(b_sink, base[:, None], rest[:, None], b_alpha[:, None], KIND)
        total += tl.sum(b_p, 1)
        mass += tl.sum(b_w, 1)
    b_sum, b_mean = tl.zeros([16, BE], tl.float32), tl.zeros([16, BE], tl.float32)
    noise = (0, 0, 0.0)
    if DROPOUT & FEATURES:
        noise = (tl.load(p_seed), (o_row * S)[:, None], dropout)
    for i in tl.static_range(NC):
        b_p, b_w = weights_tile(ts[i], base[:, None], rest[:, None], b_alpha[:, None], KIND)
        b_sum, b_mean = add_values(
            b_sum, b_mean, b_p, b_w, o_keys[i], i * C, count, p_value, value_s, noise,
            KEEP, FEATURES, E, C, BE,
        )  # fmt: skip
    if p_value.dtype.element_ty == tl.float16:
        b_sum *= 1 / HALF_SCALE
    b_sum = (b_sum * tl.where(total > 0, 1 / total, 0.0)[:, None]).to(p_output.dtype.element_ty)
    store_tile(p_output, b_sum, o_row, m_row, E, BE)
    if KEEP:
        b_mean *= tl.where(mass > 0, 1 / mass, 0.0)[:, None]
        store_tile(p_mean, b_mean - b_sum.to(tl.float32), o_row, m_row, E, BE)
    tl.store(p_tau + o_row, tl.where(is_empty, float("inf"), peak - base - rest), mask=m_row)
    tl.store(p_state + o_row, peak, mask=m_row)
    tl.store(p_state + n + o_row, tl.where(is_empty, 0.0, base), mask=m_row)
    tl.store(p_state + 2 * n + o_row, rest, mask=m_row)


@triton.jit
def load_counts(p_count, index, n, T, past, R: tl.constexpr):
    """How many candidates groups of R queries have; `past` for groups that are not there."""
    head, group = group_of(index, 0, T, R)
    blocks = tl.cdiv(T, R)
    return tl.load(p_count + head * blocks + group, mask=index < n // T * blocks, other=past)


@triton.jit
def rows_forward_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed,
    p_list, p_count, p_output, p_tau, p_state, p_mean, alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, cap, least_count,
    TOLERANCE: tl.constexpr, KIND: tl.constexpr, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, NC: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of MANY groups of queries those with at least `least_count` and at most C · NC candidates."""
    strides = (
        query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g, value_s,
        starts_b, stops_b, diagonal_b, mask_t, mask_s,
    )  # fmt: skip
    first, most = tl.program_id(0) * MANY, tl.minimum(C * NC, cap)
    b_count = load_counts(p_count, first + tl.arange(0, MANY), n, T, cap + 1, R)
    if tl.max(((b_count >= least_count) & (b_count <= most)).to(tl.int32), 0) > 0:
        for index in range(first, first + MANY):
            count = load_counts(p_count, index, n, T, cap + 1, R)
            if (count >= least_count) & (count <= most):
                solve_group(
                    index, count, (p_query, p_key, p_value), (p_starts, p_stops, p_diagonal),
                    p_rows, p_mask, p_seed, (p_list, cap), (p_output, p_tau, p_state, p_mean),
                    (alpha, gamma, scale, softcap, dropout), (heads, groups, T, S, n), strides,
                    TOLERANCE, KIND, KEEP, FEATURES, D, E, BD, BE, R, C, NC,
                )  # fmt: skip


@triton.jit
def rows_backward_kernel(
    p_query, p_key, p_value, p_starts, p_stops, p_diagonal, p_rows, p_mask, p_seed, p_grad, p_state,
    p_output, p_list, p_count, p_value_mean, p_mean, p_query_grad, p_rows_grad, p_bits,
    alpha, gamma, scale, softcap, dropout,
    heads, groups, T, S, n, query_b, query_h, query_t, key_b, key_g, key_s, value_b, value_g,
    value_s, starts_b, stops_b, diagonal_b, mask_b, mask_h, mask_t, mask_s, grad_b, grad_h, grad_t,
    cap, words, key_blocks, first_head,
    NEEDS: tl.constexpr, KIND: tl.constexpr, FEATURES: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    RK: tl.constexpr,
):  # fmt: skip
    """The gradients of the queries of a group and of their parameters, and Σ w dp / Σ w. Marks the
    queries that give weight to a block of RK keys, in words (key_blocks, words) of each head from
    `first_head` on."""
    head, group = group_of(tl.program_id(0), first_head, T, R)
    place = head * tl.cdiv(T, R) + group
    count = tl.load(p_count + place)
    if count > cap:
        return
    b, h, o_t, m_row, o_row, parameters, rows = open_group(
        head, group, p_starts, p_stops, p_diagonal, p_rows, p_mask, alpha, gamma, scale, heads, T,
        n, starts_b, stops_b, diagonal_b, mask_t, FEATURES, R,
    )  # fmt: skip
    b_alpha, b_gamma, b_scale, _, b_sink = parameters
    g = h // (heads // groups)
    p_list += place * cap
    p_key += b * key_b + g * key_g
    p_value += b * value_b + g * value_g
    p_bits += (head - first_head) * key_blocks * words
    top = tl.load(p_state + o_row)
    base = tl.load(p_state + n + o_row)
    rest = tl.load(p_state + 2 * n + o_row)
    b_query = load_row_tile(p_query + b * query_b + h * query_h, o_t, query_t, D, BD)
    b_grad = load_row_tile(p_grad + b * grad_b + h * grad_h, o_t, grad_t, E, BE)
    b_mean = load_row_tile(p_value_mean, o_row, E, E, BE).to(tl.float32)
    b_mean += load_row_tile(p_output, o_row, E, E, BE).to(tl.float32)
    mean = tl.sum(b_grad.to(tl.float32) * b_mean, 1)

    slope = b_scale / b_gamma
    zero = tl.zeros([16], tl.float32)
    b_sum = tl.zeros([16, BD], tl.float32)
    by_gamma, by_scale, by_slope, by_one = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
    by_alpha = (zero, zero, zero, zero, zero, zero, zero)
    b_row_bit = tl.where(m_row, 1 << (o_t % 32), 0)[:, None]
    o_c = tl.arange(0, C)
    o_next = tl.load(p_list + o_c, mask=o_c < count, other=0)
    for first in range(0, count, C):
        o_key, m_key = o_next, first + o_c < count
        o_next = tl.load(p_list + first + C + o_c, mask=first + C + o_c < count, other=0)
        b_key = gather_tile(p_key, o_key, m_key, key_s, D, BD)
        b_value = gather_tile(p_value, o_key, m_key, value_s, E, BE)
        o_seen = tl.where(m_key, o_key, S)[None, :]
        b_dot = narrow_dot(b_query, tl.trans(b_key), tl.zeros([16, C], tl.float32))
        b_t, b_steepness = distances_tile(
            b_dot, top[:, None], rows, o_seen, mask_s, m_key[None, :], softcap, True, FEATURES
        )
        b_p, b_w = weights_tile(b_t, base[:, None], rest[:, None], b_alpha[:, None], KIND)
        b_dp = narrow_dot(b_grad, tl.trans(b_value), tl.zeros([16, C], tl.float32))
        if DROPOUT & FEATURES:
            b_dp *= kept_tile(tl.load(p_seed), (o_row * S)[:, None] + o_seen, dropout)
        b_dz = tl.where(b_w > 0, b_w * (b_dp - mean[:, None]), 0.0)
        b_ds = b_dz * b_steepness * slope[:, None]
        b_sum = narrow_dot(b_ds.to(b_key.dtype), b_key, b_sum)
        b_word = tl.sum(tl.where(b_w > 0, b_row_bit, 0), 0)
        tl.atomic_or(
            p_bits + o_key // RK * words + tl.min(o_t, 0) // 32, b_word,
            mask=m_key & (b_word != 0), sem="relaxed",
        )  # fmt: skip
        if PAIRED & NEEDS:
            by_one = add_pair(by_one, b_dz, b_w, tl.full([16, C], 1.0, tl.float32))
        if GAMMA & NEEDS:
            by_gamma = add_pair(by_gamma, b_dz, b_w, tl.where(b_w > 0, b_t + top[:, None], 0.0))
        if SCALE & NEEDS:
            by_scale = add_pair(by_scale, b_dz, b_w, b_steepness * b_dot)
        if SLOPE & NEEDS:
            b_x = tl.abs(rows[3] - o_seen).to(tl.float32)
            by_slope = add_pair(by_slope, b_dz, b_w, b_x)
        if ALPHA & NEEDS:
            by_alpha = add_all(by_alpha, alpha_sums(b_p, b_dp, b_alpha[:, None] - 1))
    store_tile(p_query_grad, b_sum, o_row, m_row, D, BD)
    tl.store(p_mean + o_row, mean, mask=m_row)
    if NEEDS:
        b_sink = ((b_alpha - 1) / b_gamma * b_sink)[:, None]
        b_p, b_w = zero[:, None], zero[:, None]
        if SINKS & FEATURES:
            b_p, b_w = weights_tile(
                b_sink - top[:, None], base[:, None], rest[:, None], b_alpha[:, None], KIND
            )
        weight = tl.sum(b_w, 1)
        lack = zero
        if PAIRED & NEEDS:  # the mean is rounded, and sums over scores would magnify what it lacks
            mass = by_one[1] + weight
            lack = (by_one[0] - weight * mean) / tl.where(mass > 0, mass, 1.0)
        p_rows_grad += o_row
        if ALPHA & NEEDS:
            by_alpha = add_all(by_alpha, alpha_sums(b_p, b_p * 0, b_alpha[:, None] - 1))
            tl.store(p_rows_grad, alpha_gradient(by_alpha, b_alpha - 1), mask=m_row)
        if GAMMA & NEEDS:
            b_x = tl.where(b_w > 0, b_sink, 0.0)
            total = by_gamma[0] - lack * by_gamma[1] - weight * (mean + lack) * tl.sum(b_x, 1)
            tl.store(p_rows_grad + n, total / (b_gamma * (1 - b_alpha)), mask=m_row)
        if SCALE & NEEDS:
            total = by_scale[0] - lack * by_scale[1]
            tl.store(p_rows_grad + 2 * n, total / b_gamma, mask=m_row)
        if SLOPE & NEEDS:
            total = by_slope[0] - lack * by_slope[1]
            tl.store(p_rows_grad + 3 * n, -total / b_gamma, mask=m_row)
        if SINK & NEEDS:
            tl.store(p_rows_grad + 4 * n, -weight * mean / b_gamma, mask=m_row)
