"""The autograd of log-partitions and marginals: each is the derivative of the one before."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._transforms import cache_signature, eager, is_transformed
from ..ops._structure import Operators


def log_partition(
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    option: int,
    operators: Operators,
) -> Tensor:
    """log Σ exp of the scores of all structures, (B), in the scores' type."""
    watched = (scores, extra_scores)
    if is_transformed():
        value = ForwardLogPartition.apply(scores, extra_scores, lengths, option, operators)[0]
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in watched):
        function = LogPartition if torch.compiler.is_compiling() else EagerLogPartition
        value = function.apply(scores, extra_scores, lengths, option, operators)[0]
    else:
        value = operators.log_partition(scores, extra_scores, lengths, option)
    return value.to(scores.dtype)


def marginals(
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    option: int,
    operators: Operators,
) -> tuple[Tensor, Tensor | None]:
    """Its gradient, in the scores (B, …) and in the extra scores of each instance (B, …)."""
    if is_transformed():
        function = ForwardMarginals
    else:
        function = Marginals if torch.compiler.is_compiling() else EagerMarginals
    u, v = function.apply(scores, extra_scores, lengths, option, operators)
    return u, None if extra_scores is None else v


def _summed(v: Tensor, extra_scores: Tensor) -> Tensor:
    """A gradient of each instance (B, …) as one of the extra scores (B or 1, …)."""
    return v.sum(0, keepdim=True) if extra_scores.shape[0] != v.shape[0] else v


def _spread(tangent: Tensor | None, extra_scores: Tensor | None, batch: int) -> Tensor | None:
    """A tangent of extra scores (B or 1, …) as one of each instance, (B, …)."""
    if tangent is None or extra_scores is None:
        return None
    return tangent.expand(batch, *tangent.shape[1:]).contiguous()


def _mapped(
    function: type[Function], info: Any, in_dims: tuple, arguments: tuple, tensors: int
) -> tuple[tuple, tuple]:
    """A function under torch.vmap: the mapped dimension becomes part of the batch.

    Args:
        function: of `tensors` tensors (B or 1, …) or None, scores first, and options.
        info, in_dims, arguments: as PyTorch gives them.
    Returns:
        The results (V, B, …), and the places of their mapped dimensions.
    """
    front = [
        None if x is None else x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(arguments[:tensors], in_dims[:tensors], strict=True)
    ]
    size, batch = info.batch_size, front[0].shape[1]  # type: ignore[union-attr]
    folded = (None if x is None else x.expand(size, batch, *x.shape[2:]) for x in front)
    folded = (None if x is None else x.flatten(0, 1).contiguous() for x in folded)
    results = function.apply(*folded, *arguments[tensors:])
    there = [True] * (len(results) - 1) + [arguments[1] is not None]  # v, of extra scores
    return (
        tuple(
            x.reshape(size, batch, *x.shape[1:]) if some else x
            for x, some in zip(results, there, strict=True)
        ),
        tuple(0 if some else None for some in there),
    )


@cache_signature
class LogPartition(Function):
    """Values (B) in float64 of scores (B, …) and extra scores (B or 1, …), or None; and the
    marginals u and v, without derivatives, for backward."""

    @staticmethod
    def forward(
        scores: Tensor,
        extra_scores: Tensor | None,
        lengths: Tensor | None,
        option: int,
        operators: Operators,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return operators.marginals(scores, extra_scores, lengths, option)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        scores, extra_scores, lengths, ctx.option, ctx.operators = inputs
        _, u, v = output
        ctx.mark_non_differentiable(u, v)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, extra_scores, lengths, u, v)
        ctx.save_for_forward(scores, extra_scores, lengths, u, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple:
        scores, extra_scores, lengths, u, v = ctx.saved_tensors
        if grad is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            u, v = marginals(scores, extra_scores, lengths, ctx.option, ctx.operators)
        grad = grad.to(scores.dtype)
        of_scores = u * grad.reshape(-1, *[1] * (u.ndim - 1))
        if extra_scores is None or v is None:
            return of_scores, None, None, None, None
        of_extra = _summed(v * grad.reshape(-1, *[1] * (v.ndim - 1)), extra_scores)
        return of_scores, of_extra, None, None, None


class ForwardLogPartition(LogPartition):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    def jvp(ctx: Any, of_scores: Tensor | None, of_extra: Tensor | None, *_: None) -> tuple:
        scores, extra_scores, lengths, u, v = ctx.saved_tensors
        if of_scores is not None or of_extra is not None:
            u, v = marginals(scores, extra_scores, lengths, ctx.option, ctx.operators)
        rise = scores.new_zeros(scores.shape[0], dtype=torch.float64)
        if of_scores is not None:
            rise = rise + (u * of_scores).flatten(1).double().sum(1)
        if of_extra is not None and v is not None:
            rise = rise + (v * of_extra).flatten(1).double().sum(1)
        return rise, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _mapped(ForwardLogPartition, info, in_dims, arguments, 3)


EagerLogPartition = eager(LogPartition)


@cache_signature
class Marginals(Function):
    """Marginals u like the scores and v of the extra scores of each instance."""

    @staticmethod
    def forward(
        scores: Tensor,
        extra_scores: Tensor | None,
        lengths: Tensor | None,
        option: int,
        operators: Operators,
    ) -> tuple[Tensor, Tensor]:
        _, u, v = operators.marginals(scores, extra_scores, lengths, option)
        return u, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        scores, extra_scores, lengths, ctx.option, ctx.operators = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, extra_scores, lengths)
        ctx.save_for_forward(scores, extra_scores, lengths)

    @staticmethod
    def backward(
        ctx: Any, of_u: Tensor | None, of_v: Tensor | None
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        scores, extra_scores, lengths = ctx.saved_tensors
        if of_u is None:
            of_u = torch.zeros_like(scores)
        if extra_scores is None:
            of_v = None
        arguments = (of_u, of_v, lengths, ctx.option)
        if torch.is_grad_enabled() and not is_transformed():
            # a second derivative is wanted: only the reference has one
            of_scores, of_extra = ctx.operators.reference.vjp(scores, extra_scores, *arguments)
        else:
            product = Product.apply if is_transformed() else Product.forward
            of_scores, of_extra = product(scores, extra_scores, *arguments, ctx.operators)
            if extra_scores is not None:
                of_extra = _summed(of_extra, extra_scores)
        return of_scores, None if extra_scores is None else of_extra, None, None, None


class ForwardMarginals(Marginals):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    def jvp(ctx: Any, of_scores: Tensor | None, of_extra: Tensor | None, *_: None) -> tuple:
        scores, extra_scores, lengths = ctx.saved_tensors
        of_u = torch.zeros_like(scores) if of_scores is None else of_scores
        of_v = _spread(of_extra, extra_scores, len(scores))
        return Product.apply(scores, extra_scores, of_u, of_v, lengths, ctx.option, ctx.operators)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _mapped(ForwardMarginals, info, in_dims, arguments, 3)


EagerMarginals = eager(Marginals)


@cache_signature
class Product(Function):
    """The Hessian of the log-partition times a vector, in which it is linear and symmetric."""

    @staticmethod
    def forward(
        scores: Tensor,
        extra_scores: Tensor | None,
        of_u: Tensor,
        of_v: Tensor | None,
        lengths: Tensor | None,
        option: int,
        operators: Operators,
    ) -> tuple[Tensor, Tensor]:
        return operators.product(scores, extra_scores, of_u, of_v, lengths, option)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        scores, extra_scores, _, _, lengths, ctx.option, ctx.operators = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, extra_scores, lengths)
        ctx.save_for_forward(scores, extra_scores, lengths)

    @staticmethod
    def backward(ctx: Any, of_u: Tensor | None, of_v: Tensor | None) -> tuple:
        if any(ctx.needs_input_grad[:2]):
            raise NotImplementedError(_THIRD)
        u, v = _linear(ctx, of_u, of_v)
        needs = ctx.needs_input_grad
        return None, None, u if needs[2] else None, v if needs[3] else None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any,
        scores: Tensor | None,
        extra_scores: Tensor | None,
        of_u: Tensor | None,
        of_v: Tensor | None,
        *_: None,
    ) -> tuple:
        if scores is not None or extra_scores is not None:
            raise NotImplementedError(_THIRD)
        return _linear(ctx, of_u, of_v)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _mapped(Product, info, in_dims, arguments, 5)


_THIRD = (
    "torch.func and forward mode have no third derivatives of a log-partition; use "
    "`torch.autograd.grad` with `create_graph=True`."
)


def _linear(ctx: Any, of_u: Tensor | None, of_v: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product at the saved scores with another vector."""
    scores, extra_scores, lengths = ctx.saved_tensors
    of_u = torch.zeros_like(scores) if of_u is None else of_u
    of_v = None if extra_scores is None else of_v
    return Product.apply(scores, extra_scores, of_u, of_v, lengths, ctx.option, ctx.operators)
