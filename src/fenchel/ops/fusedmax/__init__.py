"""fusedmax: the total-variation prox followed by the projection onto the simplex."""

from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare
from .._triton import kernel
from . import reference

_solve = NativeFunction("fusedmax", "scores: T*, lam: f64, rows: i64, d: i64, y: T*, threads: i32")
_jvp = NativeFunction("fusedmax_jvp", "y: T*, v: T*, rows: i64, d: i64, out: T*, threads: i32")
_triton_solve, _triton_jvp = kernel("fusedmax", "fusedmax"), kernel("fusedmax", "fusedmax_jvp")
KERNELS = Kernels(
    _solve,
    _jvp,
    gpu_solve=lambda scores, lam, _: _triton_solve(scores, lam),
    gpu_jvp=lambda y, v, *_: _triton_jvp(y, v),
)

fusedmax = declare(
    "fusedmax(Tensor scores, float lam) -> Tensor",
    reference=reference.fusedmax,
    native=_solve.rows,
    triton=_triton_solve,
    in_onnx=False,
)
fusedmax_jvp = declare(
    "fusedmax_jvp(Tensor y, Tensor v) -> Tensor",
    reference=reference.fusedmax_jvp,
    native=_jvp.rows,
    triton=_triton_jvp,
)
