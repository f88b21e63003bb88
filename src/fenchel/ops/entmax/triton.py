"""α-entmax on a GPU: the mapping, its value, its Jacobian, and its derivative in α."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton import jvp as _jvp
from .._triton.launch import row_values, rows_of, solution, solve
from .._triton.launcher import launcher
from .._triton.root import ENTMAX, rounded


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


@triton.jit
def entmax_parameter_vjp_kernel(
    p_y, p_v, p_out, p_parameter, parameter: tl.float64, n, d, stride, v_stride,
    PER_ROW: tl.constexpr, TYPE: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """<v, ∂y/∂α> by seven sums over each row, as parameter.cpp has them; R rows per program."""
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    m_row = o_row < n
    if PER_ROW:
        # (R,)
        epsilon = tl.load(p_parameter + o_row, mask=m_row, other=2.0).to(TYPE) - 1
    else:
        epsilon = tl.full([R], parameter, TYPE) - 1
    mean_a = tl.zeros([R], TYPE)
    mean_f, mean_g, plain, by_a, by_f, by_g = mean_a, mean_a, mean_a, mean_a, mean_a, mean_a
    for start in range(0, d, D):
        o = start + tl.arange(0, D)[None, :]
        m_entry = m_row[:, None] & (o < d)
        # (R, D) each
        b_y = tl.load(p_y + o_row[:, None] * stride + o, mask=m_entry, other=0.0).to(TYPE)
        b_v = tl.load(p_v + o_row[:, None] * v_stride + o, mask=m_entry, other=0.0).to(TYPE)
        m_in = b_y > 0
        b_a = -tl.log(tl.where(m_in, b_y, 1.0))
        b_t = epsilon[:, None] * b_a
        m_near = tl.abs(b_t) < 0.3
        b_near = tl.where(m_near, b_t, 0.0)
        b_tail = tl.zeros([R, D], TYPE)
        for k in tl.static_range(13):
            b_tail = (b_tail * b_near + 1.0) / (14 - k)
        b_far = tl.where(m_near, 1.0, b_t)
        b_tail = tl.where(m_near, b_tail, (tl.exp(b_far) - 1.0 - b_far) / (b_far * b_far))
        b_f = b_a * (1 + b_t * b_tail)
        b_g = b_a * b_a * b_tail
        b_w = tl.where(m_in, b_y * b_v, 0.0)
        mean_a += tl.sum(b_y * b_a, 1)
        mean_f += tl.sum(b_y * b_f, 1)
        mean_g += tl.sum(b_y * b_g, 1)
        plain += tl.sum(b_w, 1)
        by_a += tl.sum(b_w * b_a, 1)
        by_f += tl.sum(b_w * b_f, 1)
        by_g += tl.sum(b_w * b_g, 1)
    slope = mean_g * plain - by_g + mean_f * by_a - mean_a * by_f
    slope = slope / (1 + epsilon * mean_f)
    tl.store(p_out + o_row, rounded(slope, p_out.dtype.element_ty), mask=m_row)


def entmax_parameter_vjp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    rows, others, d = rows_of(y), rows_of(v), y.shape[-1]
    out = torch.empty((*y.shape[:-1], 1), dtype=y.dtype, device=y.device)
    if n := rows.shape[0]:
        values, number = row_values(alpha, y.shape)
        width = min(triton.next_power_of_2(d), 1024)
        block = max(1, 1024 // width)
        double = torch.float64 in (y.dtype, v.dtype)
        run = launcher(
            entmax_parameter_vjp_kernel, PER_ROW=values is not None, R=block, D=width,
            TYPE=tl.float64 if double else tl.float32, num_warps=4,
        )  # fmt: skip
        strides = rows.stride(0), others.stride(0)
        run((-(-n // block),), rows, others, out, values, number or 2.0, n, d, *strides)
    return out
