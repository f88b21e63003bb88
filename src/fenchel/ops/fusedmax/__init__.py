"""fusedmax: the total-variation prox followed by the projection onto the simplex."""

from .._native import Kernel
from .._operator import declare
from .._triton import kernel
from . import reference

fusedmax = declare(
    "fusedmax(Tensor scores, float lam) -> Tensor",
    reference=reference.fusedmax,
    native=Kernel("fusedmax", parameters=("number",)),
    triton=kernel("fusedmax", "fusedmax"),
    in_onnx=False,
)
fusedmax_jvp = declare(
    "fusedmax_jvp(Tensor y, Tensor v) -> Tensor",
    reference=reference.fusedmax_jvp,
    native=Kernel("fusedmax_jvp", inputs=2),
    triton=kernel("fusedmax", "fusedmax_jvp"),
)
