"""Mappings regularized by a norm (normmax) or half its square (pnormmax), and their Jacobians."""

from collections.abc import Callable

from torch import Tensor

from .. import _decomposition
from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare, declare_with
from .._triton import kernel
from . import reference

_SOLVE = "scores: T*, p: f64*, p_step: i64, rows: i64, d: i64, y: T*, threads: i32"
_JVP = "y: T*, v: T*, p: f64*, p_step: i64, rows: i64, d: i64, out: T*, threads: i32"


def _kernels(name: str) -> tuple[Kernels, Callable[..., Tensor], Callable[..., Tensor]]:
    """All kernels of a mapping, and those of a GPU."""
    solve, jvp = kernel("pnormmax", name), kernel("pnormmax", f"{name}_jvp")
    kernels = Kernels(
        NativeFunction(name, _SOLVE),
        NativeFunction(f"{name}_jvp", _JVP),
        gpu_solve=lambda scores, p, _: solve(scores, p),
        gpu_jvp=lambda y, v, p, _: jvp(y, v, p),
    )
    return kernels, solve, jvp


NORMMAX_KERNELS, _triton_normmax, _triton_normmax_jvp = _kernels("normmax")
PNORMMAX_KERNELS, _triton_pnormmax, _triton_pnormmax_jvp = _kernels("pnormmax")

normmax = declare_with(
    "alpha",
    "normmax(Tensor scores",
    reference=reference.normmax,
    native=NORMMAX_KERNELS.solve.rows,
    triton=_triton_normmax,
    decomposition=_decomposition.normmax,
)
normmax_jvp = declare_with(
    "alpha",
    "normmax_jvp(Tensor y, Tensor v",
    reference=reference.normmax_jvp,
    native=NORMMAX_KERNELS.jvp.rows,
    triton=_triton_normmax_jvp,
)
pnormmax = declare(
    "pnormmax(Tensor scores, float p) -> Tensor",
    reference=reference.pnormmax,
    native=PNORMMAX_KERNELS.solve.rows,
    triton=_triton_pnormmax,
    decomposition=_decomposition.pnormmax,
)
pnormmax_jvp = declare(
    "pnormmax_jvp(Tensor y, Tensor v, float p) -> Tensor",
    reference=reference.pnormmax_jvp,
    native=PNORMMAX_KERNELS.jvp.rows,
    triton=_triton_pnormmax_jvp,
)
