"""α-entmax: the mapping, its value max_Ω, and its Jacobian times a vector."""

from __future__ import annotations

import torch
from torch import Tensor

from .._native import Kernel
from .._operator import declare_with, like
from . import reference

_kernel = Kernel("entmax", parameters=("rows",), results=2)


def _entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    y = torch.empty_like(scores)
    _kernel.write((scores, alpha), y, None)
    return y


def _entmax_max(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(scores)
    value = scores.new_empty(scores.shape[:-1])
    _kernel.write((scores, alpha), y, value)
    return value, y


entmax = declare_with("alpha", "entmax(Tensor scores", reference=reference.entmax, native=_entmax)
entmax_max = declare_with(
    "alpha",
    "entmax_max(Tensor scores",
    results="(Tensor, Tensor)",
    fake=lambda scores, alpha: (scores.new_empty(scores.shape[:-1]), like(scores)),
    reference=reference.entmax_max,
    native=_entmax_max,
)
entmax_jvp = declare_with(
    "alpha",
    "entmax_jvp(Tensor y, Tensor v",
    reference=reference.entmax_jvp,
    native=Kernel("entmax_jvp", inputs=2, parameters=("rows",)),
)
