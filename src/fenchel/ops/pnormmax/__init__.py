"""Mappings regularized by a norm (normmax) or half its square (pnormmax), and their Jacobians."""

from .. import _decomposition
from .._native import Kernel
from .._operator import declare, declare_with
from .._triton import kernel
from . import reference

normmax = declare_with(
    "alpha",
    "normmax(Tensor scores",
    reference=reference.normmax,
    native=Kernel("normmax", parameters=("rows",)),
    triton=kernel("pnormmax", "normmax"),
    decomposition=_decomposition.normmax,
)
normmax_jvp = declare_with(
    "alpha",
    "normmax_jvp(Tensor y, Tensor v",
    reference=reference.normmax_jvp,
    native=Kernel("normmax_jvp", inputs=2, parameters=("rows",)),
    triton=kernel("pnormmax", "normmax_jvp"),
)
pnormmax = declare(
    "pnormmax(Tensor scores, float p) -> Tensor",
    reference=reference.pnormmax,
    native=Kernel("pnormmax", parameters=("rows",)),
    triton=kernel("pnormmax", "pnormmax"),
    decomposition=_decomposition.pnormmax,
)
pnormmax_jvp = declare(
    "pnormmax_jvp(Tensor y, Tensor v, float p) -> Tensor",
    reference=reference.pnormmax_jvp,
    native=Kernel("pnormmax_jvp", inputs=2, parameters=("rows",)),
    triton=kernel("pnormmax", "pnormmax_jvp"),
)
