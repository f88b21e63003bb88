"""Derivatives of a minimizer over the simplex, in the scores and in all that Ω is made of.

At the solution y, θ − ∇Ω(y) is constant on the support, and J, the Jacobian of the solution, maps
that to zero: Newton's step y + J(θ − ∇Ω(y)) is y itself. Differentiated through J and ∇Ω, one step
from a constant y has the right first derivatives, and two have the right second ones, in θ and in
whatever Ω is made of, which nobody need list.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._transforms import has_tangent, is_transformed
from ._descent import unwrap

Omega = Callable[[Tensor], Tensor]


def values(omega: Omega, y: Tensor) -> Tensor:
    """Ω(y) of rows (..., d), checked."""
    try:
        value = omega(y)
    except RuntimeError as error:
        if "dtype" not in str(error):
            raise
        raise TypeError(
            f"`omega` must take rows of {y.dtype}, the type in which it is minimized: cast what it "
            f"is made of, as in `weight.to(y.dtype)` or `module.to({y.dtype})`. {error}"
        ) from error
    if not isinstance(value, Tensor):
        raise TypeError(f"`omega` must return a tensor, got {type(value).__name__}.")
    if value.shape != y.shape[:-1] or not value.is_floating_point():
        raise ValueError(
            f"`omega` must return real numbers of shape {tuple(y.shape[:-1])}, one per row, for y "
            f"of shape {tuple(y.shape)}; got {value.dtype} of shape {tuple(value.shape)}."
        )
    return value


def slope(omega: Omega, y: Tensor, create_graph: bool = False) -> Tensor:
    """∇Ω(y) of rows (..., d); with a graph if asked for, or as a transform asks for it."""
    if torch.compiler.is_compiling() or is_transformed():
        return torch.func.grad(lambda y: values(omega, y).sum())(y)
    # torch.func refuses hooks on saved tensors, which checkpointing has.
    with torch.enable_grad():
        point = y if create_graph and y.requires_grad else y.detach().requires_grad_()
        value = values(omega, point)
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(
                value.sum(), point, create_graph=create_graph, allow_unused=True
            )
    if gradient is None:
        raise ValueError("`omega` must be differentiable in y, but it does not depend on y.")
    return gradient


def hessian(omega: Omega, y: Tensor) -> Tensor:
    """The Hessian of Ω at rows (..., d), shape (..., d, d)."""
    d = y.shape[-1]
    pull = torch.func.vjp(torch.func.grad(lambda y: values(omega, y).sum()), y)[1]
    basis = torch.eye(d, dtype=y.dtype, device=y.device)
    directions = basis.view(d, *(1 for _ in y.shape[:-1]), d).expand(d, *y.shape)
    return torch.func.vmap(pull)(directions)[0].movedim(0, -2)


def needs_gradient(value: Tensor) -> bool:
    """Whether a derivative may be asked for in what a value was computed from."""
    if torch.is_grad_enabled() and value.requires_grad:
        return True
    if torch.compiler.is_compiling() or not is_transformed():
        return False
    if unwrap(value) is not value:
        return True
    return has_tangent(value)


class HigherOrderOnly(Function):
    """y itself, where a first derivative through it is known to be zero: only second ones pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.wanted = False
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        ctx.wanted = ctx.wanted or torch.is_grad_enabled()
        return grad if ctx.wanted else None


class Step(Function):
    """Newton's step from the solution y along `pull`, θ − ∇Ω(y), where its length is zero.

    Only y is kept; J is computed in backward.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, pull: Tensor, jvp: Callable[..., Tensor]) -> Tensor:
        y = y.clone()
        ctx.jvp = jvp
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (y,) = ctx.saved_tensors
        return grad, None if grad is None else ctx.jvp(y, grad), None


def attach_derivatives(
    omega: Omega, jvp: Callable[..., Tensor], scores: Tensor, y: Tensor, steps: int
) -> Tensor:
    """The solution y of scores (..., d), with derivatives of as many orders as there are steps."""
    for _ in range(steps):
        if is_transformed():
            pull = scores - slope(omega, y)
            y = y + jvp(y, pull - pull.detach())
        else:
            y = higher_order_only(y)
            y = Step.apply(y, scores - slope(omega, y, create_graph=True), jvp)
    return y


def higher_order_only(y: Tensor) -> Tensor:
    """y as the argument of something that is stationary there."""
    if is_transformed():
        return y
    return HigherOrderOnly.apply(y if y.requires_grad else y.detach().requires_grad_())
