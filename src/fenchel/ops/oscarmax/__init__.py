"""oscarmax: isotonic regression of the sorted scores, then the projection onto the simplex."""

from .._native import Kernel
from .._operator import declare
from .._triton import kernel
from . import reference

oscarmax = declare(
    "oscarmax(Tensor scores, float lam) -> Tensor",
    reference=reference.oscarmax,
    native=Kernel("oscarmax", parameters=("number",)),
    triton=kernel("oscarmax", "oscarmax"),
    in_onnx=False,
)
oscarmax_jvp = declare(
    "oscarmax_jvp(Tensor y, Tensor v) -> Tensor",
    reference=reference.oscarmax_jvp,
    native=Kernel("oscarmax_jvp", inputs=2),
    triton=kernel("oscarmax", "oscarmax_jvp"),
)
