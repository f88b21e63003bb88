"""The autograd of log-partitions and marginals: each is the derivative of the one before."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops._structure import Operators


def log_partition(
    scores: Tensor,
    additional: Tensor | None,
    lengths: Tensor | None,
    option: int,
    operators: Operators,
) -> Tensor:
    """log Σ exp of the scores of all structures, (B), in the scores' type."""
    watched = (scores, additional)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in watched):
        value = LogPartition.apply(scores, additional, lengths, option, operators)
    else:
        value = operators.log_partition(scores, additional, lengths, option)
    return value.to(scores.dtype)


def marginals(
    scores: Tensor,
    additional: Tensor | None,
    lengths: Tensor | None,
    option: int,
    operators: Operators,
) -> tuple[Tensor, Tensor | None]:
    """Its gradient, in the scores (B, …) and in the additional scores of each instance (B, …)."""
    u, v = Marginals.apply(scores, additional, lengths, option, operators)
    return u, None if additional is None else v


def _summed(v: Tensor, additional: Tensor) -> Tensor:
    """A gradient of each instance (B, …) as one of the additional scores (B or 1, …)."""
    return v.sum(0, keepdim=True) if additional.shape[0] < v.shape[0] else v


class LogPartition(Function):
    """Values (B) in float64 of scores (B, …) and additional scores (B or 1, …), or None."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        additional: Tensor | None,
        lengths: Tensor | None,
        option: int,
        operators: Operators,
    ) -> Tensor:
        value, u, v = operators.marginals(scores, additional, lengths, option)
        ctx.save_for_backward(scores, additional, lengths, u, v)
        ctx.option, ctx.operators = option, operators
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        scores, additional, lengths, u, v = ctx.saved_tensors
        if torch.is_grad_enabled():
            u, v = Marginals.apply(scores, additional, lengths, ctx.option, ctx.operators)
        grad = grad.to(scores.dtype)
        of_scores = u * grad.reshape(-1, *[1] * (u.ndim - 1))
        if additional is None:
            return of_scores, None, None, None, None
        of_additional = _summed(v * grad.reshape(-1, *[1] * (v.ndim - 1)), additional)
        return of_scores, of_additional, None, None, None


class Marginals(Function):
    """Marginals u like the scores and v of the additional scores of each instance."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        additional: Tensor | None,
        lengths: Tensor | None,
        option: int,
        operators: Operators,
    ) -> tuple[Tensor, Tensor]:
        _, u, v = operators.marginals(scores, additional, lengths, option)
        ctx.save_for_backward(scores, additional, lengths)
        ctx.option, ctx.operators = option, operators
        ctx.set_materialize_grads(False)
        return u, v

    @staticmethod
    def backward(
        ctx: Any, of_u: Tensor | None, of_v: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        scores, additional, lengths = ctx.saved_tensors
        if of_u is None:
            of_u = torch.zeros_like(scores)
        if additional is None:
            of_v = None
        arguments = (of_u, of_v, lengths, ctx.option)
        if torch.is_grad_enabled():  # a second derivative is wanted: only the reference has one
            of_scores, of_additional = ctx.operators.reference.vjp(scores, additional, *arguments)
        else:
            of_scores, of_additional = ctx.operators.product(scores, additional, *arguments)
            if additional is not None:
                of_additional = _summed(of_additional, additional)
        return of_scores, None if additional is None else of_additional, None, None, None
