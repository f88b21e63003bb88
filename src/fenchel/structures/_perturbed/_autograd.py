"""The autograd of means over the samples of a perturbed optimizer."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


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

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:
        theta, y, score = ctx.saved_tensors
        loss = (y * gradient).sum(-1, keepdim=True)
        if len(y) > 1:  # the mean is a baseline, which depends on each sample by 1/S
            loss = (loss - loss.mean(0)) * (len(y) / (len(y) - 1))
        return LastDerivative.apply((loss * score).mean(0), theta), None, None


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

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:
        theta, y = ctx.saved_tensors
        return LastDerivative.apply(gradient.unsqueeze(1) * y, theta), None, None


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
        raise NotImplementedError(
            "a Perturbed has first derivatives only; for second ones use `fenchel.marginals`, or "
            "`fenchel.sparsemap`."
        )
