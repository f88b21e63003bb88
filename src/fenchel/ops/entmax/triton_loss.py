"""The loss of α-entmax on a GPU: its values, its gradient, and the gradient's support."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import TYPES, Root, exactness, power_kind, row_values, rows_of
from .._triton.launcher import Launcher, launcher
from .._triton.outside import weights_outside
from .._triton.root import ENTMAX, finite, rounded, row_constants, solution_power, tilt
from .triton import entmax_state


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
    parameter: tl.float64, c: tl.float64, r: tl.float64, n, d, stride, out_stride, weight_step,
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
    # (R,) each
    weight = tl.load(p_weight + o_row * weight_step, mask=m_row, other=0.0).to(TYPE)
    top = tl.load(p_state + 4 * o_row, mask=m_row, other=0.0)
    m_live = m_entry & ((weight != 0) & (top != -float("inf")))[:, None]
    # (R, D)
    b_x = tl.load(p_x + o_row[:, None] * stride + o_column, mask=m_live, other=-float("inf"))
    b_out = _weights(b_x.to(TYPE), p_state, o_row, m_row, b_parameter, c, r, POWER, EXACT, TYPE)
    if TARGET:
        # (R,)
        target = tl.load(p_target + o_row, mask=m_row, other=-1)
        b_out = tl.where(o_column == target[:, None], b_out - 1, b_out)
    b_out = rounded(tl.where(m_live, b_out * weight[:, None], 0.0), p_out.dtype.element_ty)
    tl.store(p_out + o_row[:, None] * out_stride + o_column, b_out, mask=m_entry)


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
    n = x.shape[0]
    if out is None:
        out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    values, number = row_values(alpha, scores.shape)
    if target is not None:
        target = target.contiguous()
    weight_step = 0 if weights.numel() == 0 or not any(weights.stride()) else 1
    weights = weights if weight_step == 0 else weights.contiguous()
    double = scores.dtype == torch.float64
    for run, block, tiles, root in (
        _gradient_launches(number, double, d, target is not None) if n else ()
    ):
        run(
            (-(-n // block) * tiles,), x, state.contiguous(), target, weights, out, values, *root,
            n, d, x.stride(0), d, weight_step,
        )  # fmt: skip
    return out


@lru_cache(maxsize=4096)
def _gradient_launches(
    alpha: float | None, double: bool, d: int, target: bool
) -> list[tuple[Launcher, int, int, tuple[float, ...]]]:
    """Kernels with the rows that a program takes, the tiles of a row, and numbers for it; alpha is
    None if it differs from row to row."""
    root = Root.of(alpha, ENTMAX.value)
    width = min(triton.next_power_of_2(d), 2048)
    block = max(1, 2048 // width)
    found = []
    for exact in exactness(alpha):
        wide = torch.float64 if exact or double else torch.float32
        run = launcher(
            entmax_gradient_kernel, POWER=power_kind(root.r, wide), PER_ROW=alpha is None,
            EXACT=exact, TARGET=target, R=block, D=width, num_warps=4, TYPE=TYPES[wide],
        )  # fmt: skip
        numbers = (2.0 if alpha is None else alpha, root.c, root.r)
        found.append((run, block, triton.cdiv(d, width), numbers))
    return found


def entmax_gradient_(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> None:
    entmax_gradient(scores, state, target, weights, alpha, out=scores)


@triton.jit
def entmax_support_kernel(
    p_x, p_state, p_target, p_weight, p_column, p_value, p_count,
    alpha: tl.float64, c: tl.float64, r: tl.float64, d, stride, max_width,
    POWER: tl.constexpr, EXACT: tl.constexpr, TYPE: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One row per program: its target, then its support. Entries are written as they are found, in
    no order, and then ordered by column, so that answers repeat. The counts come as zeros."""
    o_row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    p_row = p_x + o_row[:, None] * stride
    p_count += o_row
    p_column += o_row[:, None] * (max_width + 1)
    p_value += o_row[:, None] * (max_width + 1)
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
            m_in = m_in & (b_place <= max_width)
            tl.store(p_column + b_place, o, mask=m_in)
            tl.store(p_value + b_place, b_y, mask=m_in)
        tl.debug_barrier()
        found += 1 + tl.load(p_count, volatile=True)
        m_entry = (o_entry > 0) & (o_entry < found[:, None]) & (o_entry <= max_width)
        # (1, K)
        b_column = tl.load(p_column + o_entry, mask=m_entry, other=d)
        b_value = tl.load(p_value + o_entry, mask=m_entry, other=0.0)
        b_rank = tl.zeros([1, K], tl.int32)
        for start in range(1, tl.minimum(tl.max(found, 0), max_width + 1), 16):
            o = start + tl.arange(0, 16)[None, :]
            # (1, 16)
            b_other = tl.load(p_column + o, mask=(o < found[:, None]) & (o <= max_width), other=d)
            b_rank += tl.sum((b_other[:, None, :] < b_column[:, :, None]).to(tl.int32), 2)
        tl.debug_barrier()
        tl.store(p_column + 1 + b_rank, b_column, mask=m_entry)
        tl.store(p_value + 1 + b_rank, b_value, mask=m_entry)
        tl.store(p_column + o_one, target[:, None])
        tl.store(p_value + o_one, tl.full([1, 1], -1.0, TYPE))
        tl.store(p_count, found)
    m_free = (o_entry >= found[:, None]) & (o_entry <= max_width)
    tl.store(p_column + o_entry, d + tl.zeros([1, K], tl.int32), mask=m_free)
    tl.store(p_value + o_entry, tl.zeros([1, K], TYPE), mask=m_free)


def entmax_support(
    scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, max_width: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, d = rows_of(scores), scores.shape[-1]
    root = Root.of(alpha, ENTMAX.value)
    (exact,) = exactness(alpha)
    wide = torch.float64 if exact else torch.promote_types(scores.dtype, torch.float32)
    columns = torch.empty((x.shape[0], 1 + max_width), dtype=torch.int32, device=x.device)
    values = torch.empty((x.shape[0], 1 + max_width), dtype=wide, device=x.device)
    counts = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    width = max(256, min(triton.next_power_of_2(d), 2048))
    if x.shape[0]:
        run = launcher(
            entmax_support_kernel, POWER=power_kind(root.r, wide), EXACT=exact, M=width,
            K=max(16, triton.next_power_of_2(1 + max_width)), num_warps=width // 256,
            TYPE=tl.float64 if wide == torch.float64 else tl.float32,
        )  # fmt: skip
        run(
            (x.shape[0],), x, state.contiguous(), target.contiguous(), weights.contiguous(),
            columns, values, counts, alpha, root.c, root.r, d, x.stride(0), max_width,
        )  # fmt: skip
    return columns, values.to(torch.promote_types(scores.dtype, torch.float32)), counts


@triton.jit
def entmax_loss_kernel(
    p_x, p_target, p_value, p_state, p_loss, ignore_index, n, d, stride,
    EPSILON: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """What `reference.entmax_loss` does after the solve, R rows per program."""
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    m_row = o_row < n
    # (R,) each
    target = tl.load(p_target + o_row, mask=m_row, other=0)
    value = tl.load(p_value + o_row, mask=m_row, other=0.0)
    m_inside = m_row & (target >= 0) & (target < d)
    score = tl.load(p_x + o_row * stride + target, mask=m_inside, other=float("nan"))
    loss = value - score.to(tl.float64)
    ignored = target == ignore_index
    loss = tl.where((loss < EPSILON) | ignored, 0.0, loss)
    tl.store(p_loss + o_row, loss.to(p_loss.dtype.element_ty), mask=m_row)
    tl.store(p_state + 4 * o_row, -float("inf"), mask=m_row & ignored)


def entmax_loss(
    scores: Tensor, target: Tensor, ignore_index: int, alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    x, d = rows_of(scores), scores.shape[-1]
    value, state = entmax_state(scores, alpha)
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    losses = torch.empty(scores.shape[:-1], dtype=wide, device=scores.device)
    if n := x.shape[0]:
        run = launcher(entmax_loss_kernel, EPSILON=torch.finfo(wide).eps / 2, R=128, num_warps=4)
        run(
            (-(-n // 128),), x, target.contiguous(), value, state, losses, ignore_index, n, d,
            x.stride(0),
        )  # fmt: skip
    return losses, state
