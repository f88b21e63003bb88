"""oscarmax on the GPU: rows are sorted, then solved in registers, or in tiles where long."""

import triton
import triton.language as tl
from torch import Tensor

from .._triton.segments import INF, LONGEST, launch, padded, solve
from .._triton.tiles import solve_tiles
from ..tv1d.triton import group_jvp


@triton.jit
def penalty(lam, d):
    """Of scores less their largest: a floor, a lower bound of τ, λ, and the cost of a fall, none.

    With c_i = x_i + λ i in decreasing order from i = 0, z_0 ≥ c_0 = 0 and τ ≥ z_0 − 1; and
    z_i ≤ max over j ≥ i of c_j ≤ x_i + λ d.
    """
    lam = tl.full((), lam, tl.float64)
    return -1.0 - lam * d, lam * 0 - 1.0, lam, lam * 0


@triton.jit
def oscarmax_forward_kernel(
    p_scores,
    p_order,
    p_y,
    lam: tl.float64,
    rows,
    d,
    height: tl.constexpr,
    width: tl.constexpr,
):
    floor, bound, lam, none = penalty(lam, d)
    solve(p_scores, p_order, p_y, floor, lam, none, none + INF, bound, rows, d, height, width)


@triton.jit
def oscarmax_tiles_kernel(
    p_scores,
    p_order,
    p_y,
    p_x,
    p_z,
    p_mark,
    p_side,
    lam: tl.float64,
    rows,
    d,
    width: tl.constexpr,
):
    floor, bound, lam, none = penalty(lam, d)
    rise = none + INF
    scratch = p_x, p_z, p_mark, p_side
    solve_tiles(p_scores, p_order, p_y, scratch, floor, lam, none, rise, bound, rows, d, width)


def oscarmax(scores: Tensor, lam: float, longest: int = LONGEST) -> Tensor:
    """As the reference does it; rows longer than `longest`, a power of two, go by tiles of that.

    Args:
        scores: (..., d), float32 or float64.
        lam: λ ≥ 0.
        longest: entries that a program holds.

    Returns:
        (..., d), bitwise equal within a group. Sorting; O(d) work and O(log d) steps a round.
    """
    ordered, order = padded(scores).sort(-1, descending=True)
    kernels = oscarmax_forward_kernel, oscarmax_tiles_kernel
    return launch(kernels, ordered, order, lam, longest)[..., : scores.shape[-1]].contiguous()


def oscarmax_jvp(y: Tensor, v: Tensor, longest: int = LONGEST) -> Tensor:
    """The Jacobian of oscarmax at its value y, times v.

    Args:
        y: (..., d).
        v: (..., d).
        longest: entries that a program holds.

    Returns:
        (..., d). Sorting; O(d) work and O(log d) steps.
    """
    ordered, order = y.sort(-1, descending=True)
    return group_jvp(ordered, v, order, longest)
