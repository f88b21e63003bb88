"""k-subset mappings: entries in [0, 1] that sum to k, and the Jacobian times a vector."""

from torch import Tensor

from .. import _decomposition
from .._binding import Kernels
from .._native import NativeFunction
from .._operator import declare
from .._triton import kernel
from . import reference

_function = NativeFunction(
    "ksubset",
    "scores: T*, k: f64*, k_step: i64, alpha: f64, rows: i64, d: i64, y: T*, threads: i32",
)
_jvp = NativeFunction(
    "ksubset_jvp", "y: T*, v: T*, alpha: f64, rows: i64, d: i64, out: T*, threads: i32"
)
_triton_solve, _triton_jvp = kernel("ksubset", "ksubset"), kernel("ksubset", "ksubset_jvp")
KERNELS = Kernels(
    _function,
    _jvp,
    gpu_solve=_triton_solve,
    gpu_jvp=lambda y, v, _, alpha: _triton_jvp(y, v, alpha),
)


def _native(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    if alpha > 2:
        return reference.in_float64(scores, k, alpha)
    return _function.rows(scores, k, alpha)


_kernels = {
    "reference": reference.ksubset,
    "native": _native,
    "triton": _triton_solve,
    "decomposition": _decomposition.ksubset,
}
_scalar = declare("ksubset(Tensor scores, float k, float alpha) -> Tensor", **_kernels)
_tensor = declare("ksubset.Tensor(Tensor scores, Tensor k, float alpha) -> Tensor", **_kernels)
ksubset_jvp = declare(
    "ksubset_jvp(Tensor y, Tensor v, float alpha) -> Tensor",
    reference=reference.ksubset_jvp,
    native=_jvp.rows,
    triton=_triton_jvp,
)


def ksubset(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    """The mapping for k the same in all rows, or a tensor (..., 1)."""
    return (_tensor if isinstance(k, Tensor) else _scalar)(scores, k, alpha)
