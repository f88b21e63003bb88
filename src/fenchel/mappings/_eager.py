"""Eager calls, for rows as they are: the compiled binding, and without it the autograd functions
that are the cheapest to call."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._transforms import eager_apply, is_eager, is_recorded
from ..ops._binding import Kernels, LossKernels, bind_class_loss, bind_solver
from ._autograd import Argmax, EagerArgmax, gradients
from ._protocols import HasClosure, HasKernels, HasParameter

if TYPE_CHECKING:
    from ._base import AbstractMapping


def bound_solver(kernels: Kernels, parameter: str | float, **limits: Any) -> Any:
    """What a class of mappings has as its `_solver`; see `bind_solver`."""
    return bind_solver(kernels, gradients, parameter, **limits)


def bound_class_loss(kernels: LossKernels, parameter: str | float) -> Any:
    """What a class of mappings has as its `_class_loss`; see `bind_class_loss`."""
    return bind_class_loss(kernels, class_gradient, parameter)


class DirectArgmax(EagerArgmax):
    """The same for rows and a parameter as they are, which the mapping holds."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping
    ) -> Tensor:
        y = _eager_solve(scores, mapping)
        ctx.mapping = mapping
        ctx.save_for_backward(y, parameter)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        y, parameter = ctx.saved_tensors
        mapping = ctx.mapping
        if (
            torch.is_grad_enabled()
            or not isinstance(mapping, HasKernels)
            or y.dtype != grad.dtype
            or not is_eager(grad)
        ):
            return Argmax.backward(ctx, grad)
        grad_parameter = None
        if ctx.needs_input_grad[1]:
            slope = mapping.parameter_vjp(y, grad)  # type: ignore[attr-defined]
            grad_parameter = slope.sum_to_size(parameter.shape).to(parameter.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_parameter, None
        return mapping.kernel_jvp(y, grad), grad_parameter, None


_direct_argmax = eager_apply(DirectArgmax)


def eager_solution(scores: Tensor, mapping: AbstractMapping) -> Tensor:
    """ŷ(scores) in an eager call, for rows and a parameter as they are."""
    if isinstance(mapping, HasClosure) and mapping.is_learned(scores):
        return mapping.learned_solution(scores)
    parameter = None
    if isinstance(mapping, HasParameter):
        value = mapping.__dict__[mapping.parameter]
        parameter = value if isinstance(value, Tensor) else None
    if torch.is_grad_enabled() and (
        scores.requires_grad or (parameter is not None and parameter.requires_grad)
    ):
        return _direct_argmax(scores, parameter, mapping)
    return _eager_solve(scores, mapping)


def _eager_solve(scores: Tensor, mapping: AbstractMapping) -> Tensor:
    return (
        mapping.kernel_solve(scores) if isinstance(mapping, HasKernels) else mapping.solve(scores)
    )


class ClassLoss(Function):
    """The mean or sum of the losses of rows (..., d) for classes (...), in an eager call; the
    states of the rows are kept, and the scores."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        scores: Tensor,
        target: Tensor,
        mapping: AbstractMapping,
        reduction: str,
        ignore_index: int | None,
    ) -> Tensor:
        losses, state = mapping.class_losses(scores, target, ignore_index)  # type: ignore[attr-defined]
        ctx.mapping, ctx.ignore_index, ctx.count = mapping, ignore_index, None
        total = losses.sum()
        if reduction == "mean":
            ctx.count = target.numel()
            if ignore_index is not None:
                ctx.count = (target != ignore_index).sum()
            total = total / ctx.count
        ctx.save_for_backward(scores, state, target)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        scores, state, target = ctx.saved_tensors
        gradient = class_gradient(
            ctx.mapping, scores, state, target, grad, ctx.count, ctx.ignore_index
        )
        return gradient, None, None, None, None


def class_gradient(
    mapping: AbstractMapping,
    scores: Tensor,
    state: Tensor,
    target: Tensor,
    grad: Tensor,
    count: int | Tensor | None,
    ignore_index: int | None,
) -> Tensor:
    """The gradient of the mean of `count` losses, or of their sum if it is None."""
    weight = grad if count is None else grad / count
    weights = weight.expand(*target.shape, 1)
    if not is_recorded():
        target = target.unsqueeze(-1)
        return mapping.gradient(scores, state, target, weights, False)  # type: ignore[attr-defined]
    kept = torch.ones_like(target, dtype=torch.bool)
    if ignore_index is not None:
        kept = target != ignore_index
    classes = torch.where(kept, target, 0).unsqueeze(-1)
    weights = torch.where(kept.unsqueeze(-1), weights, 0.0)
    gradient = torch.where(kept.unsqueeze(-1), weights * eager_solution(scores, mapping), 0)
    return gradient.scatter_add(-1, classes, -weights)


_class_loss = eager_apply(ClassLoss)


def class_loss(
    scores: Tensor,
    target: Tensor,
    mapping: AbstractMapping,
    reduction: str,
    ignore_index: int | None,
) -> Tensor:
    """The mean or sum of the losses; see `ClassLoss`."""
    return _class_loss(scores, target, mapping, reduction, ignore_index)
