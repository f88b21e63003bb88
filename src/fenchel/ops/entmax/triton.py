"""α-entmax on a GPU: the mapping, its value and Jacobian, its loss's gradient, its support."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton import jvp as _jvp
from .._triton.launch import (
    Root,
    exactness,
    power_kind,
    row_values,
    rows_of,
    solution,
    solve,
)
from .._triton.launcher import launcher
from .._triton.outside import weights_outside
from .._triton.root import ENTMAX, finite, rounded, row_constants, solution_power, tilt


@triton.jit
def _weights(
    b_x, p_state, o_row, m_row, alpha, c, r,
    POWER: tl.constexpr, EXACT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """y from a block (R, D) of scores and the rows' states."""
    # (R,) each
    top = tl.load(p_state + 4 * o_row, mask=m_row, other=0.0)
    state_rise = tl.load(p_state + 4 * o_row + 1, mask=m_row, other=0.0)
    state_rest = tl.load(p_state + 4 * o_row + 2, mask=m_row, other=0.0)
    share = tl.load(p_state + 4 * o_row + 3, mask=m_row, other=0.0).to(TYPE)
    if EXACT:
        b_weight = weights_outside(b_x, top, state_rise, alpha)
    else:
        rise = state_rise.to(TYPE)
        rest = ((state_rise - rise.to(tl.float64)) + state_rest).to(TYPE)
        b_tilt = tilt(b_x, finite(top.to(TYPE), TYPE), c, TYPE)
        b_weight = solution_power(b_tilt, rise, rest, r, POWER)
    return b_weight * share[:, None]


@triton.jit
def entmax_gradient_kernel(
    p_x, p_state, p_target, p_weight, p_out, p_parameter,
    parameter: tl.float64, c: tl.float64, r: tl.float64, n, d, stride, out_stride,
    POWER: tl.constexpr, PER_ROW: tl.constexpr, EXACT: tl.constexpr, TARGET: tl.constexpr,
    TYPE: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(d, D)
    o_row = (tl.program_id(0) // tiles).to(tl.int64) * R + tl.arange(0, R)
    o_column = tl.program_id(0) % tiles * D + tl.arange(0, D)[None, :]
    m_row = o_row < n
    b_parameter, c, r, _, _, _ = row_constants(
        p_parameter, parameter, c, r, r, r, r, o_row, m_row, d, 1.0, 1.0, PER_ROW, ENTMAX, TYPE
    )
    if PER_ROW:
        m_row = m_row & (((b_parameter > 2) | (b_parameter < 1)) == EXACT)
    m_entry = m_row[:, None] & (o_column < d)
    # (R,)
    weight = tl.load(p_weight + o_row, mask=m_row, other=0.0).to(TYPE)
    m_live = m_entry & (weight != 0)[:, None]
    # (R, D)
    b_x = tl.load(p_x + o_row[:, None] * stride + o_column, mask=m_live, other=-float("inf"))
    b_out = _weights(b_x.to(TYPE), p_state, o_row, m_row, b_parameter, c, r, POWER, EXACT, TYPE)
    if TARGET:
        # (R,)
        target = tl.load(p_target + o_row, mask=m_row, other=-1)
        b_out = tl.where(o_column == target[:, None], b_out - 1, b_out)
    b_out = rounded(tl.where(m_live, b_out * weight[:, None], 0.0), p_out.dtype.element_ty)
    tl.store(p_out + o_row[:, None] * out_stride + o_column, b_out, mask=m_entry)


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    return solution(scores, alpha, ENTMAX)


def entmax_max(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    solved = solve(scores, alpha, ENTMAX, state=True)
    assert solved.value is not None
    assert solved.y is not None
    return solved.value, solved.y


def entmax_state(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    solved = solve(scores, alpha, ENTMAX, write=False, state=True)
    assert solved.value is not None
    assert solved.state is not None
    return solved.value, solved.state


def entmax_jvp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    return _jvp.jvp(y, v, alpha, ENTMAX)


def entmax_gradient(
    scores: Tensor,
    state: Tensor,
    target: Tensor | None,
    weights: Tensor,
    alpha: float | Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """weights (..., 1) times (y − the target's vertex), y from the state, into out or anew."""
    x, d = rows_of(scores), scores.shape[-1]
    if out is None:
        out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    results = out.view(-1, d)
    values, number = row_values(alpha, scores.shape)
    root = Root.of(number, ENTMAX.value)
    width = min(triton.next_power_of_2(d), 2048)
    block = max(1, 2048 // width)
    if target is not None:
        target = target.contiguous()
    for exact in exactness(number) if x.shape[0] else ():
        wide = torch.float64 if exact or scores.dtype == torch.float64 else torch.float32
        run = launcher(
            entmax_gradient_kernel, POWER=power_kind(root.r, wide), PER_ROW=values is not None,
            EXACT=exact, TARGET=target is not None, R=block, D=width, num_warps=4,
            TYPE=tl.float64 if wide == torch.float64 else tl.float32,
        )  # fmt: skip
        run(
            (triton.cdiv(x.shape[0], block) * triton.cdiv(d, width),),
            x, state.contiguous(), target, weights.contiguous(), results, values,
            2.0 if number is None else number, root.c, root.r, x.shape[0], d, x.stride(0),
            results.stride(0),
        )  # fmt: skip
    return out


def entmax_gradient_(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> None:
    entmax_gradient(scores, state, target, weights, alpha, out=scores)


@triton.jit
def entmax_support_kernel(
    p_x, p_state, p_target, p_weight, p_column, p_value, p_count,
    alpha: tl.float64, c: tl.float64, r: tl.float64, d, stride, most,
    POWER: tl.constexpr, EXACT: tl.constexpr, TYPE: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One row per program: its target, then its support. Entries are written as they are found, in
    no order, and then ordered by column, so that answers repeat. The counts come as zeros."""
    o_row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    p_row = p_x + o_row[:, None] * stride
    p_count += o_row
    p_column += o_row[:, None] * (most + 1)
    p_value += o_row[:, None] * (most + 1)
    o_one = tl.zeros([1, 1], tl.int32)
    o_entry = tl.arange(0, K)[None, :]
    found = tl.full([1], 0, tl.int32)
    # (1,)
    weight = tl.load(p_weight + o_row)
    if tl.max((weight != 0).to(tl.int32), 0) > 0:
        # (1,)
        target = tl.load(p_target + o_row).to(tl.int32)
        b_alpha, b_c = tl.full([1], alpha, TYPE), tl.full([1], c, TYPE)
        b_r = tl.full([1], r, TYPE)
        for start in range(0, d, M):
            o = start + tl.arange(0, M)[None, :]
            # (1, M)
            b_x = tl.load(p_row + o, mask=o < d, other=-float("inf")).to(TYPE)
            b_y = _weights(b_x, p_state, o_row, o_row >= 0, b_alpha, b_c, b_r, POWER, EXACT, TYPE)
            m_in = (b_y != 0) & (o < d)
            b_place = 1 + tl.atomic_add(
                p_count[:, None] + tl.zeros([1, M], tl.int32), 1, mask=m_in, sem="relaxed"
            )
            m_in = m_in & (b_place <= most)
            tl.store(p_column + b_place, o, mask=m_in)
            tl.store(p_value + b_place, b_y, mask=m_in)
        tl.debug_barrier()
        found += 1 + tl.load(p_count, volatile=True)
        m_entry = (o_entry > 0) & (o_entry < found[:, None]) & (o_entry <= most)
        # (1, K)
        b_column = tl.load(p_column + o_entry, mask=m_entry, other=d)
        b_value = tl.load(p_value + o_entry, mask=m_entry, other=0.0)
        b_rank = tl.zeros([1, K], tl.int32)
        for start in range(1, tl.minimum(tl.max(found, 0), most + 1), 16):
            o = start + tl.arange(0, 16)[None, :]
            # (1, 16)
            b_other = tl.load(p_column + o, mask=(o < found[:, None]) & (o <= most), other=d)
            b_rank += tl.sum((b_other[:, None, :] < b_column[:, :, None]).to(tl.int32), 2)
        tl.debug_barrier()
        tl.store(p_column + 1 + b_rank, b_column, mask=m_entry)
        tl.store(p_value + 1 + b_rank, b_value, mask=m_entry)
        tl.store(p_column + o_one, target[:, None])
        tl.store(p_value + o_one, tl.full([1, 1], -1.0, TYPE))
        tl.store(p_count, found)
    m_free = (o_entry >= found[:, None]) & (o_entry <= most)
    tl.store(p_column + o_entry, d + tl.zeros([1, K], tl.int32), mask=m_free)
    tl.store(p_value + o_entry, tl.zeros([1, K], TYPE), mask=m_free)


def entmax_support(
    scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, most: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, d = rows_of(scores), scores.shape[-1]
    root = Root.of(alpha, ENTMAX.value)
    (exact,) = exactness(alpha)
    wide = torch.float64 if exact else torch.promote_types(scores.dtype, torch.float32)
    columns = torch.empty((x.shape[0], 1 + most), dtype=torch.int32, device=x.device)
    values = torch.empty((x.shape[0], 1 + most), dtype=wide, device=x.device)
    counts = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    width = max(256, min(triton.next_power_of_2(d), 2048))
    if x.shape[0]:
        run = launcher(
            entmax_support_kernel, POWER=power_kind(root.r, wide), EXACT=exact, M=width,
            K=max(16, triton.next_power_of_2(1 + most)), num_warps=width // 256,
            TYPE=tl.float64 if wide == torch.float64 else tl.float32,
        )  # fmt: skip
        run(
            (x.shape[0],), x, state.contiguous(), target.contiguous(), weights.contiguous(),
            columns, values, counts, alpha, root.c, root.r, d, x.stride(0), most,
        )  # fmt: skip
    return columns, values.to(torch.promote_types(scores.dtype, torch.float32)), counts
