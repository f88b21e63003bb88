"""The Jacobian of a thresholded mapping times a vector: a s (v − shift) − b y, with s = y^(2−p)."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import row_values, rows_of
from .launcher import Launcher
from .root import ENTMAX, NORM, fast_exp2, fast_log2, rounded

HELD = 8192
"""Rows of up to so many entries are held in registers."""


@triton.jit
def _parameters(p_parameter, parameter, o_row, m_row, PER_ROW: tl.constexpr, TYPE: tl.constexpr):
    """α or p of each row, (R,)."""
    if PER_ROW:
        return tl.load(p_parameter + o_row, mask=m_row, other=2.0).to(TYPE)
    else:
        return tl.full(o_row.shape, parameter, TYPE)


@triton.jit
def _free(b_y, CAPPED: tl.constexpr):
    """y without the entries that have reached a cap of one."""
    if CAPPED:
        return tl.where(b_y < 1, b_y, 0.0)
    else:
        return b_y


@triton.jit
def _steep_power(b_y, b_power):
    """y^power of positive float32 numbers. A power of two is taken out of y, so that no product of
    a large logarithm is rounded: it would lose as many digits as it has before the point."""
    m_tiny = b_y < 2.0**-100
    b_bits = tl.where(m_tiny, b_y * 2.0**64, b_y).to(tl.int32, bitcast=True)
    b_exponent = ((b_bits >> 23) - 127 - tl.where(m_tiny, 64, 0)).to(tl.float32)
    b_fraction = ((b_bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    b_whole = b_power * b_exponent
    b_lost = tl.fma(b_power, b_exponent, -b_whole)
    b_log = b_power * fast_log2(b_fraction)
    b_near = tl.floor(b_whole + b_log + 0.5)
    return fast_exp2((b_whole - b_near) + (b_lost + b_log)) * fast_exp2(b_near)


@triton.jit
def _curvature(b_y, p, CURVE: tl.constexpr, STEEP: tl.constexpr):
    """s = y^(2−p) where y > 0, else 0; CURVE is 2(2 − p) if that is 0, 1 or 2, or −1."""
    if CURVE == 2:
        b_s = b_y
    elif CURVE == 1:
        b_s = tl.sqrt(b_y)
    elif CURVE == 0:
        b_s = tl.where(b_y > 0, 1.0, b_y).to(b_y.dtype)
    else:
        b_inside = tl.where(b_y > 0, b_y, 1.0)
        if b_y.dtype == tl.float32 and STEEP:
            b_s = _steep_power(b_inside, tl.broadcast_to((2 - p)[:, None], b_inside.shape))
        elif b_y.dtype == tl.float32:
            b_s = fast_exp2((2 - p)[:, None] * fast_log2(b_inside))
        else:
            b_s = tl.exp((2 - p)[:, None] * tl.log(b_inside))
        b_s = tl.where(b_y > 0, b_s, b_y)  # NaN stays
    return b_s


@triton.jit
def _coefficients(mass, moment, along, power, p, KIND: tl.constexpr):
    """a, shift and b from Σ s, Σ s v, Σ y v and Σ y^p; rows without a support give zeros."""
    if KIND == ENTMAX:
        a, b = mass * 0 + 1, mass * 0
        shift = moment / tl.where(mass == 0, 1.0, mass)
    else:
        log_norm = tl.log(tl.where(power == 0, 1.0, power)) / p
        if KIND == NORM:
            a = tl.exp(log_norm * (p - 1)) / (p - 1)
            shift = along
            b = a * (moment - along * mass)
        else:
            a = tl.exp(log_norm * (p - 2)) / (p - 1)
            outer = (2 - p) / (p - 1) * tl.exp(-2 * log_norm)
            denominator = a * mass - outer
            shift = (a * moment - outer * along) / tl.where(denominator > 0, denominator, 1.0)
            b = outer * (along - shift)
    return a, shift, b


@triton.jit
def _terms(b_y, b_v, p, CURVE: tl.constexpr, STEEP: tl.constexpr, KIND: tl.constexpr):
    b_s = _curvature(b_y, p, CURVE, STEEP)
    if KIND == ENTMAX:
        return b_s, b_s * b_v, b_s, b_s
    else:
        return b_s, b_s * b_v, b_y * b_v, b_y * b_y / tl.where(b_s == 0, 1.0, b_s)


@triton.jit
def _steep_shift(b_y, b_v, p):
    """v at a smallest entry of the support where p > 2, else 0: as in entmax's reference."""
    b_size = tl.where(b_y > 0, b_y, float("inf"))
    least = tl.min(b_size, 1)
    shift = tl.max(tl.where(b_size == least[:, None], b_v, -float("inf")), 1)
    return tl.where((p > 2) & (least < float("inf")), shift, 0.0)


@triton.jit
def _long_shift(p_row, p_other, d, p, CAPPED: tl.constexpr, TYPE: tl.constexpr, M: tl.constexpr):
    """The same of one long row, by a pass over it if p > 2."""
    b_least = tl.zeros([1, M], TYPE)
    b_near = b_least
    if tl.max(p, 0) > 2:
        for start in range(0, d, M):
            o = start + tl.arange(0, M)[None, :]
            # (1, M)
            b_y = _free(tl.load(p_row + o, mask=o < d, other=0.0).to(TYPE), CAPPED)
            m_less = (b_y > 0) & ((b_y < b_least) | (b_least == 0))
            # (1, M)
            b_v = tl.load(p_other + o, mask=m_less, other=0.0).to(TYPE)
            b_least, b_near = tl.where(m_less, b_y, b_least), tl.where(m_less, b_v, b_near)
    return _steep_shift(b_least, b_near, p)


@triton.jit
def held_jvp_kernel(
    p_y, p_v, p_out, p_parameter,
    parameter: tl.float64, n, d, y_stride, v_stride,
    KIND: tl.constexpr, CURVE: tl.constexpr, PER_ROW: tl.constexpr, TYPE: tl.constexpr,
    CAPPED: tl.constexpr, STEEP: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    o_column = tl.arange(0, D)[None, :]
    m_row = o_row < n
    m_entry = m_row[:, None] & (o_column < d)
    p = _parameters(p_parameter, parameter, o_row, m_row, PER_ROW, TYPE)
    # (R, D)
    b_y = tl.load(p_y + o_row[:, None] * y_stride + o_column, mask=m_entry, other=0.0).to(TYPE)
    b_y = _free(b_y, CAPPED)
    # (R, D)
    b_v = tl.load(p_v + o_row[:, None] * v_stride + o_column, mask=m_entry, other=0.0).to(TYPE)
    b_v = tl.where(b_y == 0, 0.0, b_v)
    if STEEP:
        b_v -= _steep_shift(b_y, b_v, p)[:, None]
    b_s, b_moment, b_along, b_power = _terms(b_y, b_v, p, CURVE, STEEP, KIND)
    a, shift, b = _coefficients(
        tl.sum(b_s, 1), tl.sum(b_moment, 1), tl.sum(b_along, 1), tl.sum(b_power, 1), p, KIND
    )
    b_out = a[:, None] * b_s * (b_v - shift[:, None]) - b[:, None] * b_y
    b_out = rounded(b_out, p_out.dtype.element_ty)
    tl.store(p_out + o_row[:, None] * d + o_column, b_out, mask=m_entry)


@triton.jit
def long_jvp_kernel(
    p_y, p_v, p_out, p_parameter,
    parameter: tl.float64, n, d, y_stride, v_stride,
    KIND: tl.constexpr, CURVE: tl.constexpr, PER_ROW: tl.constexpr, TYPE: tl.constexpr,
    CAPPED: tl.constexpr, STEEP: tl.constexpr, M: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One row per program; v is read on the support alone."""
    o_row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    o_column = tl.arange(0, M)[None, :]
    p = _parameters(p_parameter, parameter, o_row, o_row < n, PER_ROW, TYPE)
    p_row, p_other = p_y + o_row[:, None] * y_stride, p_v + o_row[:, None] * v_stride
    b_mass = tl.zeros([1, M], TYPE)
    if STEEP:
        near = _long_shift(p_row, p_other, d, p, CAPPED, TYPE, M)
    b_moment, b_along, b_power = b_mass, b_mass, b_mass
    for start in range(0, d, M * UNROLL):
        for k in tl.static_range(UNROLL):
            o = start + k * M + o_column
            # (1, M)
            b_y = _free(tl.load(p_row + o, mask=o < d, other=0.0).to(TYPE), CAPPED)
            # (1, M)
            b_v = tl.load(p_other + o, mask=(o < d) & (b_y != 0), other=0.0).to(TYPE)
            if STEEP:
                b_v -= near[:, None]
            mass, moment, along, power = _terms(b_y, b_v, p, CURVE, STEEP, KIND)
            b_mass, b_moment = b_mass + mass, b_moment + moment
            b_along, b_power = b_along + along, b_power + power
    a, shift, b = _coefficients(
        tl.sum(b_mass, 1), tl.sum(b_moment, 1), tl.sum(b_along, 1), tl.sum(b_power, 1), p, KIND
    )
    for start in range(0, d, M * UNROLL):
        for k in tl.static_range(UNROLL):
            o = start + k * M + o_column
            # (1, M)
            b_y = _free(tl.load(p_row + o, mask=o < d, other=0.0).to(TYPE), CAPPED)
            # (1, M)
            b_v = tl.load(p_other + o, mask=(o < d) & (b_y != 0), other=0.0).to(TYPE)
            if STEEP:
                b_v -= near[:, None]
            b_s = _curvature(b_y, p, CURVE, STEEP)
            b_out = a[:, None] * b_s * (b_v - shift[:, None]) - b[:, None] * b_y
            b_out = rounded(b_out, p_out.dtype.element_ty)
            tl.store(p_out + o_row[:, None] * d + o, b_out, mask=o < d)


@lru_cache(maxsize=4096)
def _launch(
    parameter: float | None, kind: int, double: bool, d: int, tile: int | None, capped: bool
) -> tuple[Launcher, int]:
    """The kernel for rows of d entries, and how many a program takes; `parameter` is None if it
    differs from row to row."""
    curve = {2.0: 0, 1.5: 1, 1.0: 2}.get(parameter, -1)
    # y^(2−p) of a small y leaves the range of float32 when p is large.
    large = kind == NORM.value if parameter is None else parameter > 2
    wide = tl.float64 if large or double else tl.float32
    constants = {
        "KIND": kind,
        "CURVE": curve,
        "PER_ROW": parameter is None,
        "TYPE": wide,
        "CAPPED": capped,
        "STEEP": kind == ENTMAX.value and (parameter is None or parameter > 2),
    }
    if tile is None and d <= HELD:
        width = triton.next_power_of_2(d)
        rows, warps = max(1, 512 // width), 4 if wide == tl.float64 else 1
        shape = {"R": rows, "D": width, "num_warps": max(warps, min(8, width // 512))}
        return Launcher(held_jvp_kernel, {**constants, **shape}), rows
    width = tile or 4096
    shape = {"M": width, "UNROLL": min(4, triton.cdiv(d, width)), "num_warps": 16}
    return Launcher(long_jvp_kernel, {**constants, **shape}), 1


def jvp(
    y: Tensor,
    v: Tensor,
    parameter: float | Tensor,
    kind: tl.constexpr,
    tile: int | None = None,
    capped: bool = False,
) -> Tensor:
    """The Jacobian at solutions y (..., d) times v (..., d).

    Args:
        y, v: half precision, float32 or float64.
        parameter: α or p; a tensor holds one per row, (..., 1).
        kind: ENTMAX, NORM or SQUARED.
        tile: the width of the tiles of a long row; every row counts as long if given.
        capped: whether entries of y are at most one, and stay where they are one.
    """
    rows, others, d = rows_of(y), rows_of(v), y.shape[-1]
    out, n = torch.empty(y.shape, dtype=v.dtype, device=y.device), rows.shape[0]
    if n:
        values, number = row_values(parameter, y.shape)
        double = torch.float64 in (y.dtype, v.dtype)
        run, block = _launch(number, kind.value, double, d, tile, capped)
        strides = rows.stride(0), others.stride(0)
        run((-(-n // block),), rows, others, out, values, number or 2.0, n, d, *strides)
    return out
