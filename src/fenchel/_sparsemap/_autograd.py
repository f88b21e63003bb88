"""The autograd of SparseMAP: Proposition 1 of the paper, from what the solver kept."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

from ..ops.active_set import jacobian
from ..ops.active_set.solution import Outcome, Support

Solve = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor, Support, Outcome]]


class Argmax(Function):
    """Scores (B, n) and additional scores (B or 1, m) to marginals (B, n) and weights (B, K).

    `found` receives the support and the outcome. Of an additional score the marginal is left to
    the caller: it is linear in the weights, which are differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, additional: Tensor | None, solve: Solve, found: list
    ) -> tuple[Tensor, Tensor]:
        marginals, weights, support, outcome = solve(scores, additional)
        found[:] = support, outcome
        ctx.support = support
        ctx.widths = scores.shape[1], 0 if additional is None else additional.shape[1]
        ctx.shared = additional is not None and additional.shape[0] < scores.shape[0]
        ctx.set_materialize_grads(False)
        return marginals, weights

    @staticmethod
    def backward(ctx: Any, marginals: Tensor | None, weights: Tensor | None) -> tuple:
        parts, extras, _ = Jacobian.apply(marginals, None, weights, ctx.support, ctx.widths)
        if ctx.shared:
            extras = extras.sum(0, keepdim=True)
        needs = ctx.needs_input_grad
        return parts if needs[0] else None, extras if needs[1] else None, None, None


class Jacobian(Function):
    """The Jacobian times a vector, which is symmetric and, where the support does not change,
    constant: so it is its own derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        parts: Tensor | None,
        extras: Tensor | None,
        weights: Tensor | None,
        support: Support,
        widths: tuple[int, int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.support, ctx.widths = support, widths
        ctx.set_materialize_grads(False)
        u, v, w = (None if x is None else x.contiguous() for x in (parts, extras, weights))
        return jacobian(support, u, v, w, widths)

    @staticmethod
    def backward(
        ctx: Any, parts: Tensor | None, extras: Tensor | None, weights: Tensor | None
    ) -> tuple:
        out = Jacobian.apply(parts, extras, weights, ctx.support, ctx.widths)
        pairs = zip(out, ctx.needs_input_grad, strict=False)
        return (*(gradient if needed else None for gradient, needed in pairs), None, None)


class Maximum(Function):
    """A value (B) that is a maximum over marginals, with them as its gradient; its second
    derivative is theirs."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        scores: Tensor,
        additional: Tensor | None,
        marginals: Tensor,
        extras: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(marginals, extras)
        ctx.shared = additional is not None and additional.shape[0] < scores.shape[0]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        marginals, extras = ctx.saved_tensors
        parts = gradient.unsqueeze(-1) * marginals
        if extras is not None:
            extras = gradient.unsqueeze(-1) * extras
            extras = extras.sum(0, keepdim=True) if ctx.shared else extras
        needs = ctx.needs_input_grad
        return None, parts if needs[1] else None, extras if needs[2] else None, None, None
