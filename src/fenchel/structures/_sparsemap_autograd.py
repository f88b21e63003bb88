"""The autograd of SparseMAP: Proposition 1 of the paper, with the solver's factorization."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._transforms import cache_signature, eager, forward_rule, is_transformed
from ..ops import sparsemap as ops
from ..ops.sparsemap.derivative import Found, Given
from ._checks import NO_VMAP


@cache_signature
class Argmax(Function):
    """Scores (B, n) and extra scores (B or 1, m) to marginals (B, n) and weights (B, K).

    `found` receives the support and the outcome. The caller computes the marginals of extra scores,
    which are linear in the weights.
    """

    @staticmethod
    def forward(
        scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, found: Found
    ) -> tuple[Tensor, Tensor]:
        return found.solve(Given(scores, extra_scores, lengths))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        scores, extra_scores, _, ctx.found = inputs
        ctx.widths = scores.shape[1], 0 if extra_scores is None else extra_scores.shape[1]
        ctx.batch, ctx.shared = (
            len(scores),
            extra_scores is not None and len(extra_scores) != len(scores),
        )
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, marginals: Tensor | None, weights: Tensor | None) -> tuple:
        product = Jacobian if is_transformed() else EagerJacobian
        vector = marginals, None, weights
        parts, extras, _ = product.apply(*vector, ctx.found, ctx.widths, False)  # type: ignore[misc]
        if ctx.shared:
            extras = extras.sum(0, keepdim=True)
        needs = ctx.needs_input_grad
        return parts if needs[0] else None, extras if needs[1] else None, None, None

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, scores: Tensor | None, extra_scores: Tensor | None, *_: None) -> tuple:
        if extra_scores is not None:
            extra_scores = extra_scores.expand(ctx.batch, -1)
        parts, _, weights = Jacobian.apply(scores, extra_scores, None, ctx.found, ctx.widths, True)
        return parts, weights

    @staticmethod
    def vmap(*_: Any) -> None:
        raise NotImplementedError(NO_VMAP)


@cache_signature
class Jacobian(Function):
    """The Jacobian times a vector, `with_weights` in the result or without. It is symmetric. It is
    constant while the support does not change, so the derivative of this linear function is the
    function itself."""

    @staticmethod
    def forward(
        parts: Tensor | None,
        extras: Tensor | None,
        weights: Tensor | None,
        found: Found,
        widths: tuple[int, int],
        with_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        u, v, w = (None if x is None else x.contiguous() for x in (parts, extras, weights))
        return found.product(u, v, w, widths, with_weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.found, ctx.widths, ctx.with_weights = inputs[3:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, parts: Tensor | None, extras: Tensor | None, weights: Tensor | None
    ) -> tuple:
        needs = ctx.needs_input_grad
        out = Jacobian.apply(parts, extras, weights, ctx.found, ctx.widths, needs[2])
        pairs = zip(out, needs, strict=False)
        return (*(gradient if needed else None for gradient, needed in pairs), None, None, None)

    @staticmethod
    @forward_rule
    def jvp(
        ctx: Any, parts: Tensor | None, extras: Tensor | None, weights: Tensor | None, *_: None
    ) -> tuple:
        return Jacobian.apply(parts, extras, weights, ctx.found, ctx.widths, ctx.with_weights)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        *vectors, found, widths, with_weights = arguments
        rows = [
            Jacobian.apply(
                *(
                    x if x is None or dim is None else x.select(dim, k)
                    for x, dim in zip(vectors, in_dims, strict=False)
                ),
                found,
                widths,
                with_weights,
            )
            for k in range(info.batch_size)
        ]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0, 0, 0)


@cache_signature
class ExtraMarginals(Function):
    """Scores (B, n) and extra scores (B or 1, m) to the marginals (B, m) of extra scores, which
    were computed before."""

    @staticmethod
    def forward(scores: Tensor, extra_scores: Tensor, marginals: Tensor, found: Found) -> Tensor:
        return marginals.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        scores, extra_scores, _, ctx.found = inputs
        ctx.widths = scores.shape[1], extra_scores.shape[1]
        ctx.batch, ctx.shared = len(scores), len(extra_scores) != len(scores)

    @staticmethod
    def backward(ctx: Any, marginals: Tensor) -> tuple:
        vector = None, marginals, None
        parts, extras, _ = Jacobian.apply(*vector, ctx.found, ctx.widths, False)
        if ctx.shared:
            extras = extras.sum(0, keepdim=True)
        needs = ctx.needs_input_grad
        return parts if needs[0] else None, extras if needs[1] else None, None, None

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, scores: Tensor | None, extra_scores: Tensor | None, *_: None) -> Tensor:
        if extra_scores is not None:
            extra_scores = extra_scores.expand(ctx.batch, -1)
        return Jacobian.apply(scores, extra_scores, None, ctx.found, ctx.widths, False)[1]

    @staticmethod
    def vmap(*_: Any) -> None:
        raise NotImplementedError(NO_VMAP)


EagerArgmax, EagerJacobian = eager(Argmax), eager(Jacobian)


@cache_signature
class Maximum(Function):
    """A maximum (B) over marginals, whose gradient are these marginals."""

    @staticmethod
    def forward(
        value: Tensor,
        scores: Tensor,
        extra_scores: Tensor | None,
        marginals: Tensor,
        extras: Tensor | None,
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, scores, extra_scores, marginals, extras = inputs
        ctx.save_for_backward(marginals, extras)
        ctx.save_for_forward(marginals, extras)
        ctx.shared = extra_scores is not None and len(extra_scores) != len(scores)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        marginals, extras = ctx.saved_tensors
        parts = gradient.unsqueeze(-1) * marginals
        if extras is not None:
            extras = gradient.unsqueeze(-1) * extras
            extras = extras.sum(0, keepdim=True) if ctx.shared else extras
        needs = ctx.needs_input_grad
        return None, parts if needs[1] else None, extras if needs[2] else None, None, None


class ForwardMaximum(Maximum):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    @forward_rule
    def jvp(
        ctx: Any, _: None, scores: Tensor | None, extra_scores: Tensor | None, *__: None
    ) -> Any:
        marginals, extras = ctx.saved_tensors
        tangent = marginals.new_zeros(len(marginals))
        if scores is not None:
            tangent = tangent + (marginals * scores).sum(1)
        if extra_scores is not None:
            tangent = tangent + (extras * extra_scores).sum(1)
        return tangent

    generate_vmap_rule = True


class CompiledArgmax(Function):
    """Scores (B, n) and extra scores (B or 1, m) to their marginals (B, n) and (B, m), gaps, oracle
    calls, and which instances have converged, for torch.compile.

    `options` are those of the operators, from the lengths on. A graph holds no support, whose size
    depends on the scores; so backward solves again.
    """

    @staticmethod
    def forward(
        scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, options: tuple
    ) -> tuple[Tensor, ...]:
        return ops.marginals(scores, extra_scores, lengths, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        scores, extra_scores, lengths, ctx.options = inputs
        ctx.save_for_backward(scores, extra_scores, lengths)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, of_u: Tensor, of_v: Tensor, *_: None) -> tuple:
        scores, extra_scores, lengths = ctx.saved_tensors
        of_extras = None if extra_scores is None else of_v
        rest = (lengths, *ctx.options)
        parts, extras = ops.product(scores, extra_scores, of_u, of_extras, *rest)
        if extra_scores is None:
            return parts, None, None, None
        if extra_scores.shape[0] != scores.shape[0]:
            extras = extras.sum(0, keepdim=True)
        return parts, extras, None, None
