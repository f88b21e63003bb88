"""Mappings regularized by a norm (normmax) or half its square (pnormmax), and their Jacobians."""

from .. import _decomposition
from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare, declare_with
from .._triton import kernel
from . import reference

_SOLVE = "scores: T*, p: f64*, p_step: i64, rows: i64, d: i64, y: T*, threads: i32"
_JVP = "y: T*, v: T*, p: f64*, p_step: i64, rows: i64, d: i64, out: T*, threads: i32"
NORMMAX_KERNELS = Kernels(NativeFunction("normmax", _SOLVE), NativeFunction("normmax_jvp", _JVP))
PNORMMAX_KERNELS = Kernels(NativeFunction("pnormmax", _SOLVE), NativeFunction("pnormmax_jvp", _JVP))

normmax = declare_with(
    "alpha",
    "normmax(Tensor scores",
    reference=reference.normmax,
    native=NORMMAX_KERNELS.solve.rows,
    triton=kernel("pnormmax", "normmax"),
    decomposition=_decomposition.normmax,
)
normmax_jvp = declare_with(
    "alpha",
    "normmax_jvp(Tensor y, Tensor v",
    reference=reference.normmax_jvp,
    native=NORMMAX_KERNELS.jvp.rows,
    triton=kernel("pnormmax", "normmax_jvp"),
)
pnormmax = declare(
    "pnormmax(Tensor scores, float p) -> Tensor",
    reference=reference.pnormmax,
    native=PNORMMAX_KERNELS.solve.rows,
    triton=kernel("pnormmax", "pnormmax"),
    decomposition=_decomposition.pnormmax,
)
pnormmax_jvp = declare(
    "pnormmax_jvp(Tensor y, Tensor v, float p) -> Tensor",
    reference=reference.pnormmax_jvp,
    native=PNORMMAX_KERNELS.jvp.rows,
    triton=kernel("pnormmax", "pnormmax_jvp"),
)
