"""oscarmax: isotonic regression of the sorted scores, then the projection onto the simplex."""

from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare
from .._triton import kernel
from . import reference

_solve = NativeFunction("oscarmax", "scores: T*, lam: f64, rows: i64, d: i64, y: T*, threads: i32")
_jvp = NativeFunction("oscarmax_jvp", "y: T*, v: T*, rows: i64, d: i64, out: T*, threads: i32")
_triton_solve, _triton_jvp = kernel("oscarmax", "oscarmax"), kernel("oscarmax", "oscarmax_jvp")
KERNELS = Kernels(
    _solve,
    _jvp,
    gpu_solve=lambda scores, lam, _: _triton_solve(scores, lam),
    gpu_jvp=lambda y, v, *_: _triton_jvp(y, v),
)

oscarmax = declare(
    "oscarmax(Tensor scores, float lam) -> Tensor",
    reference=reference.oscarmax,
    native=_solve.rows,
    triton=_triton_solve,
    in_onnx=False,
)
oscarmax_jvp = declare(
    "oscarmax_jvp(Tensor y, Tensor v) -> Tensor",
    reference=reference.oscarmax_jvp,
    native=_jvp.rows,
    triton=_triton_jvp,
)
