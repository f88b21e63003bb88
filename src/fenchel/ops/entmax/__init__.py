"""α-entmax: the mapping, its value max_Ω, its Jacobian times a vector, and its loss's gradient.

A solved row is kept as a state (top, rise, rest, share) instead of y, in float64:

    y_j = share [1 + (rise + rest − (α−1)(top − x_j))]₊^(1/(α−1)), share exp(x_j − top) at α = 1.

Above α = 2 a state is (x_k, y_k, 0, 1), the smallest score of the support and its entry:

    y_j = (y_k^(α−1) + (α−1)(x_j − x_k))^(1/(α−1)) where x_j ≥ x_k.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _decomposition
from .._binding import Kernels, LossKernels
from .._native import NativeFunction
from .._operator import declare, declare_inplace_with, declare_with, like, widest
from .._triton import kernel
from . import reference

_kernel = NativeFunction(
    "entmax",
    "scores: T*, alpha: f64*, alpha_step: i64, rows: i64, d: i64, y: T*, maxima: f64*, "
    "threads: i32",
)
_state_kernel = NativeFunction(
    "entmax_state",
    "scores: T*, alpha: f64*, alpha_step: i64, rows: i64, d: i64, maxima: f64*, state: f64*, "
    "threads: i32",
)
_gradient_kernel = NativeFunction(
    "entmax_gradient",
    "scores: T*, state: f64*, target: i64*, weights: T*, alpha: f64*, alpha_step: i64, rows: i64, "
    "d: i64, out: T*, threads: i32",
)
_jvp_kernel = NativeFunction(
    "entmax_jvp",
    "y: T*, v: T*, alpha: f64*, alpha_step: i64, rows: i64, d: i64, out: T*, threads: i32",
)
_loss_kernel = NativeFunction(
    "entmax_loss",
    "scores: T*, target: i64*, ignore_index: i64, alpha: f64*, alpha_step: i64, rows: i64, d: i64, "
    "losses: T*, state: f64*, threads: i32",
)
_parameter_kernel = NativeFunction(
    "entmax_parameter_vjp",
    "y: T*, v: T*, alpha: f64*, alpha_step: i64, rows: i64, d: i64, out: T*, threads: i32",
)
STATE_WIDTH = 4
_triton_solve = kernel("entmax", "entmax")
_triton_jvp = kernel("entmax", "entmax_jvp")
_triton_parameter_vjp = kernel("entmax", "entmax_parameter_vjp")
_triton_loss = kernel("entmax", "entmax_loss", "triton_loss")
_triton_gradient = kernel("entmax", "entmax_gradient", "triton_loss")


def _gpu_gradient(
    scores: Tensor, state: Tensor, target: Tensor, weight: Tensor, alpha: float, _: float
) -> Tensor:
    weights = weight.expand(*target.shape, 1)
    return _triton_gradient(scores, state, target.unsqueeze(-1), weights, alpha)


KERNELS = Kernels(
    _kernel,
    _jvp_kernel,
    _parameter_kernel,
    lambda scores, alpha, _: _triton_solve(scores, alpha),
    lambda y, v, alpha, _: _triton_jvp(y, v, alpha),
    lambda y, v, alpha, _: _triton_parameter_vjp(y, v, alpha),
)
LOSS_KERNELS = LossKernels(
    _loss_kernel,
    _gradient_kernel,
    lambda scores, target, alpha, index: _triton_loss(scores, target, index, alpha),
    _gpu_gradient,
)


def _entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    y = torch.empty_like(scores)
    _kernel.write((scores, alpha), y, None)
    return y


def _entmax_max(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(scores)
    value = _per_row(scores)
    _kernel.write((scores, alpha), y, value)
    return value, y


def _per_row(scores: Tensor, *width: int) -> Tensor:
    """What a row has besides y, in the widest type: a loss is a small difference of values."""
    return scores.new_empty((*scores.shape[:-1], *width), dtype=widest(scores.device))


def _state_shapes(scores: Tensor, _: float | Tensor) -> tuple[Tensor, Tensor]:
    return _per_row(scores), _per_row(scores, STATE_WIDTH)


def _entmax_state(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    value, state = _state_shapes(scores, alpha)
    _state_kernel.write((scores, alpha), value, state)
    return value, state


def _entmax_gradient(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> Tensor:
    return _gradient_kernel.rows(scores, state, target, weights, alpha)


def _entmax_gradient_(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> None:
    target = None if target is None else target.contiguous()
    _gradient_kernel.write((scores, state, target, weights.contiguous(), alpha), scores)


def _loss_shapes(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(scores.dtype, torch.float32)
    losses = scores.new_empty(scores.shape[:-1], dtype=wide)
    return losses, _per_row(scores, STATE_WIDTH)


def _entmax_loss(
    scores: Tensor, target: Tensor, ignore_index: int, alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    losses, state = _loss_shapes(scores)
    _loss_kernel.write((scores, target, ignore_index, alpha), losses, state)
    return losses, state


def _entmax_parameter_vjp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    out = y.new_empty((*y.shape[:-1], 1))
    _parameter_kernel.write((y, v, alpha), out)
    return out


def _entmax_support(
    scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, max_width: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    return reference.support_of(_entmax(scores, alpha), target, weights, max_width)


entmax = declare_with(
    "alpha",
    "entmax(Tensor scores",
    reference=reference.entmax,
    native=_entmax,
    triton=_triton_solve,
    decomposition=_decomposition.entmax,
)
entmax_max = declare_with(
    "alpha",
    "entmax_max(Tensor scores",
    results="(Tensor, Tensor)",
    fake=lambda scores, alpha: (_per_row(scores), like(scores)),
    reference=reference.entmax_max,
    native=_entmax_max,
    triton=kernel("entmax", "entmax_max"),
    decomposition=_decomposition.entmax_max,
)
entmax_jvp = declare_with(
    "alpha",
    "entmax_jvp(Tensor y, Tensor v",
    reference=reference.entmax_jvp,
    native=_jvp_kernel.rows,
    triton=_triton_jvp,
)
entmax_state = declare_with(
    "alpha",
    "entmax_state(Tensor scores",
    results="(Tensor, Tensor)",
    fake=_state_shapes,
    reference=reference.entmax_state,
    native=_entmax_state,
    triton=kernel("entmax", "entmax_state"),
)
entmax_loss = declare_with(
    "alpha",
    "entmax_loss(Tensor scores, Tensor target, int ignore_index",
    results="(Tensor, Tensor)",
    fake=_loss_shapes,
    reference=reference.entmax_loss,
    native=_entmax_loss,
    triton=_triton_loss,
    rowwise=False,
)
entmax_parameter_vjp = declare_with(
    "alpha",
    "entmax_parameter_vjp(Tensor y, Tensor v",
    fake=lambda y, v, alpha: y.new_empty((*y.shape[:-1], 1)),
    reference=reference.entmax_parameter_vjp,
    native=_entmax_parameter_vjp,
    triton=_triton_parameter_vjp,
)
entmax_gradient = declare_with(
    "alpha",
    "entmax_gradient(Tensor scores, Tensor state, Tensor? target, Tensor weights",
    reference=reference.entmax_gradient,
    native=_entmax_gradient,
    triton=_triton_gradient,
)
entmax_gradient_ = declare_inplace_with(
    "alpha",
    "entmax_gradient_(Tensor(a!) scores, Tensor state, Tensor? target, Tensor weights",
    entmax_gradient,
    native=_entmax_gradient_,
    triton=kernel("entmax", "entmax_gradient_", "triton_loss"),
)
entmax_support = declare(
    "entmax_support(Tensor scores, Tensor state, Tensor target, Tensor weights, int max_width,"
    " float alpha) -> (Tensor, Tensor, Tensor)",
    fake=lambda scores, state, target, weights, max_width, alpha: (
        scores.new_empty((scores.shape[0], 1 + max_width), dtype=torch.int32),
        scores.new_empty(
            (scores.shape[0], 1 + max_width), dtype=torch.promote_types(scores.dtype, torch.float32)
        ),
        scores.new_empty(scores.shape[:1], dtype=torch.int32),
    ),
    reference=reference.entmax_support,
    native=_entmax_support,
    triton=kernel("entmax", "entmax_support", "triton_loss"),
    rowwise=False,
)
