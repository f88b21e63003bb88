"""α-entmax of short rows with an α of their own each, on a GPU, in a single launch."""

import triton
import triton.language as tl

from .outside import outside_row
from .root import ENTMAX, SLOW
from .solve import short_forward_kernel


@triton.jit
def mixed_forward_kernel(
    p_x, p_y, p_value, p_state, p_parameter, n, d, stride,
    WRITE: tl.constexpr, STATE: tl.constexpr, RESOLUTION: tl.constexpr, ROUNDING: tl.constexpr,
    TYPE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The first programs solve the rows with α in [1, 2], R each; then one for every other row."""
    blocks = tl.cdiv(n, R)
    if tl.program_id(0) < blocks:
        short_forward_kernel(
            p_x, p_y, p_value, p_state, p_parameter, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, n, d, stride,
            ENTMAX, SLOW, SLOW, SLOW, True, False, WRITE, STATE, RESOLUTION, ROUNDING, TYPE,
            R, D, GROUP,
        )  # fmt: skip
    else:
        row = (tl.program_id(0) - blocks).to(tl.int64)
        alpha = tl.load(p_parameter + row).to(tl.float64)
        outside_row(p_x, p_y, p_value, p_state, row, alpha, d, stride, WRITE, STATE, D)
