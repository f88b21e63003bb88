"""The autograd of means over the samples of a perturbed optimizer."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from ..._transforms import forward_rule

NO_SECOND = (
    "a Perturbed has first derivatives only; for second ones use `fenchel.marginals`, or "
    "`fenchel.sparsemap`."
)


class MeanVertex(Function):
    """The mean (B, D) of the best structures y (S, B, D) of perturbed scores θ, (B, D).

    Its Jacobian is the covariance of y with `score`, (S, B, D): −∇ log ρ of the noise, over σ.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(theta: Tensor, y: Tensor, score: Tensor) -> Tensor:
        return y.mean(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:
        theta, y, score = ctx.saved_tensors
        return LastDerivative.apply(_covariance(y, score, gradient), theta), None, None

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Any:
        theta, y, score = ctx.saved_tensors
        if tangent is None:
            return None
        return LastDerivative.apply(_covariance(score, y, tangent), theta)


class MeanMaximum(Function):
    """The mean (B) of the maxima of perturbed scores θ, (B, D), with the gradient y, (B, D)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(theta: Tensor, value: Tensor, y: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        theta, _, y = inputs
        ctx.save_for_backward(theta, y)
        ctx.save_for_forward(theta, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:
        theta, y = ctx.saved_tensors
        return LastDerivative.apply(gradient.unsqueeze(1) * y, theta), None, None

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Any:
        theta, y = ctx.saved_tensors
        if tangent is None:
            return None
        return LastDerivative.apply((y * tangent).sum(-1), theta)


class LastDerivative(Function):
    """A derivative in θ that has none itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(derivative: Tensor, theta: Tensor) -> Tensor:
        return derivative.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        raise NotImplementedError(NO_SECOND)

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        raise NotImplementedError(NO_SECOND)


def _covariance(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """The covariance of samples a and b (S, B, D), times vectors v (B, D): of ⟨a, v⟩ and b."""
    along = (a * v).sum(-1, keepdim=True)
    if len(a) > 1:  # the mean is a baseline, which depends on each sample by 1/S
        along = (along - along.mean(0)) * (len(a) / (len(a) - 1))
    return (along * b).mean(0)
