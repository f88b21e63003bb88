"""The autograd of log-partitions, of marginals and of their derivatives."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._transforms import cache_signature, eager, forward_rule, is_transformed
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
    """The gradient of the log-partition in the scores, (B, …), and in the extra scores of each
    instance, (B, …)."""
    if is_transformed():
        function = ForwardMarginals
    else:
        function = Marginals if torch.compiler.is_compiling() else EagerMarginals
    u, v = function.apply(scores, extra_scores, lengths, option, operators)
    return u, None if extra_scores is None else v


def _sum_shared(v: Tensor, extra_scores: Tensor) -> Tensor:
    """The gradient in extra scores (B or 1, …), from that of each instance, (B, …)."""
    return v.sum(0, keepdim=True) if extra_scores.shape[0] != v.shape[0] else v


def _expand_shared(
    tangent: Tensor | None, extra_scores: Tensor | None, batch: int
) -> Tensor | None:
    """The tangent of each instance, (B, …), from that of extra scores (B or 1, …)."""
    if tangent is None or extra_scores is None:
        return None
    return tangent.expand(batch, *tangent.shape[1:]).contiguous()


def _vmap(
    function: type[Function], info: Any, in_dims: tuple, arguments: tuple, num_tensors: int
) -> tuple[tuple, tuple]:
    """A function under torch.vmap: the mapped dimension becomes part of the batch.

    Args:
        function: its arguments are `num_tensors` tensors (B or 1, …) or None, scores first, and
            options.
        info, in_dims, arguments: as PyTorch gives them.
    Returns:
        The results (V, B, …), and which dimension of each is mapped.
    """
    front = [
        None if x is None else x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(arguments[:num_tensors], in_dims[:num_tensors], strict=True)
    ]
    size, batch = info.batch_size, front[0].shape[1]  # type: ignore[union-attr]
    merged = (None if x is None else x.expand(size, batch, *x.shape[2:]) for x in front)
    merged = (None if x is None else x.flatten(0, 1).contiguous() for x in merged)
    results = function.apply(*merged, *arguments[num_tensors:])
    is_mapped = [True] * (len(results) - 1) + [arguments[1] is not None]  # the last: extra scores
    return (
        tuple(
            x.reshape(size, batch, *x.shape[1:]) if mapped else x
            for x, mapped in zip(results, is_mapped, strict=True)
        ),
        tuple(0 if mapped else None for mapped in is_mapped),
    )


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    """Saves tensors for both modes; gradients that are zero stay None."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


@cache_signature
class LogPartition(Function):
    """The log-partition (B) in float64 of scores (B, …) and extra scores (B or 1, …) or None; and
    the marginals u and v, without derivatives, for backward."""

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
        _save(ctx, scores, extra_scores, lengths, u, v)

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
        of_extra = _sum_shared(v * grad.reshape(-1, *[1] * (v.ndim - 1)), extra_scores)
        return of_scores, of_extra, None, None, None


class ForwardLogPartition(LogPartition):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, of_scores: Tensor | None, of_extra: Tensor | None, *_: None) -> tuple:
        scores, extra_scores, lengths, u, v = ctx.saved_tensors
        if of_scores is not None or of_extra is not None:
            u, v = marginals(scores, extra_scores, lengths, ctx.option, ctx.operators)
        tangent = scores.new_zeros(scores.shape[0], dtype=torch.float64)
        if of_scores is not None:
            tangent = tangent + (u * of_scores).flatten(1).double().sum(1)
        if of_extra is not None and v is not None:
            tangent = tangent + (v * of_extra).flatten(1).double().sum(1)
        return tangent, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _vmap(ForwardLogPartition, info, in_dims, arguments, 3)


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
        _save(ctx, scores, extra_scores, lengths)

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
            # only the reference has a second derivative
            of_scores, of_extra = ctx.operators.reference.vjp(scores, extra_scores, *arguments)
        else:
            product = HessianProduct.apply if is_transformed() else HessianProduct.forward
            of_scores, of_extra = product(scores, extra_scores, *arguments, ctx.operators)
            if extra_scores is not None:
                of_extra = _sum_shared(of_extra, extra_scores)
        return of_scores, None if extra_scores is None else of_extra, None, None, None


class ForwardMarginals(Marginals):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, of_scores: Tensor | None, of_extra: Tensor | None, *_: None) -> tuple:
        scores, extra_scores, lengths = ctx.saved_tensors
        of_u = torch.zeros_like(scores) if of_scores is None else of_scores
        of_v = _expand_shared(of_extra, extra_scores, len(scores))
        return HessianProduct.apply(
            scores, extra_scores, of_u, of_v, lengths, ctx.option, ctx.operators
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _vmap(ForwardMarginals, info, in_dims, arguments, 3)


EagerMarginals = eager(Marginals)


@cache_signature
class HessianProduct(Function):
    """The Hessian of the log-partition, which is symmetric, times a vector (of_u, of_v)."""

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
        _save(ctx, scores, extra_scores, lengths)

    @staticmethod
    def backward(ctx: Any, of_u: Tensor | None, of_v: Tensor | None) -> tuple:
        if any(ctx.needs_input_grad[:2]):
            raise NotImplementedError(_NO_THIRD_DERIVATIVE)
        u, v = _multiply(ctx, of_u, of_v)
        needs = ctx.needs_input_grad
        return None, None, u if needs[2] else None, v if needs[3] else None, None, None, None

    @staticmethod
    @forward_rule
    def jvp(
        ctx: Any,
        scores: Tensor | None,
        extra_scores: Tensor | None,
        of_u: Tensor | None,
        of_v: Tensor | None,
        *_: None,
    ) -> tuple:
        if scores is not None or extra_scores is not None:
            raise NotImplementedError(_NO_THIRD_DERIVATIVE)
        return _multiply(ctx, of_u, of_v)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        return _vmap(HessianProduct, info, in_dims, arguments, 5)


_NO_THIRD_DERIVATIVE = (
    "torch.func and forward mode have no third derivatives of a log-partition; use "
    "`torch.autograd.grad` with `create_graph=True`."
)


def _multiply(ctx: Any, of_u: Tensor | None, of_v: Tensor | None) -> tuple[Tensor, Tensor]:
    """The Hessian at the saved scores times another vector."""
    scores, extra_scores, lengths = ctx.saved_tensors
    of_u = torch.zeros_like(scores) if of_u is None else of_u
    of_v = None if extra_scores is None else of_v
    return HessianProduct.apply(
        scores, extra_scores, of_u, of_v, lengths, ctx.option, ctx.operators
    )
