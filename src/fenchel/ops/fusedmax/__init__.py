"""fusedmax: the total-variation prox followed by the projection onto the simplex."""

from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare
from .._triton import kernel
from . import reference

_solve = NativeFunction("fusedmax", "scores: T*, lam: f64, rows: i64, d: i64, y: T*, threads: i32")
_jvp = NativeFunction("fusedmax_jvp", "y: T*, v: T*, rows: i64, d: i64, out: T*, threads: i32")
KERNELS = Kernels(_solve, _jvp)

fusedmax = declare(
    "fusedmax(Tensor scores, float lam) -> Tensor",
    reference=reference.fusedmax,
    native=_solve.rows,
    triton=kernel("fusedmax", "fusedmax"),
    in_onnx=False,
)
fusedmax_jvp = declare(
    "fusedmax_jvp(Tensor y, Tensor v) -> Tensor",
    reference=reference.fusedmax_jvp,
    native=_jvp.rows,
    triton=kernel("fusedmax", "fusedmax_jvp"),
)
