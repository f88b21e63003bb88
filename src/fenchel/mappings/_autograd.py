"""The autograd of every mapping, derived from its solution and its Jacobian alone."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.jit._trace import is_tracing

from .._checks import HALF
from .._transforms import (
    break_graph_if_differentiated,
    cache_signature,
    forward_rule,
    is_differentiated,
    is_recorded,
    is_transformed,
)
from ._protocols import HasClosure, HasKernels, HasState
from ._tracing import (
    check_exportable,
    register_sharding,
    to_solver_type,
    traced_solution,
    traced_value,
    varying,
)

if TYPE_CHECKING:
    from ._base import AbstractMapping


def jacobian_product(mapping: AbstractMapping, y: Tensor, v: Tensor) -> Tensor:
    """The Jacobian at the solution y times v, accumulated in at least float32."""
    jvp, takes_half = mapping.jvp, False
    if isinstance(mapping, HasKernels) and not is_recorded():
        jvp, takes_half = mapping.kernel_jvp, True
    if y.dtype == v.dtype and (takes_half or y.dtype not in HALF):
        return jvp(y, v)
    wide = torch.promote_types(y.dtype, torch.float32)
    return jvp(y.to(wide), v.to(wide)).to(v.dtype)


def _front(value: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A batched value with its batch dimension first; an unbatched one repeated."""
    if value is None:
        return None
    return value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0)


def _total(*terms: Tensor | None) -> Tensor | None:
    """The sum of those terms that are there."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def gradients(
    mapping: AbstractMapping, y: Tensor, parameter: Tensor | None, grad: Tensor, needs: Any
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in the scores and in the parameter, each if it is needed, from that in y."""
    mapping = mapping.at(parameter)
    grad_scores = grad_parameter = None
    if needs[0]:
        grad_scores = jacobian_product(mapping, y, grad)
    if needs[1] and parameter is not None:
        slope = mapping.parameter_vjp(y, grad)  # type: ignore[attr-defined]
        grad_parameter = slope.sum_to_size(parameter.shape).to(parameter.dtype)
    return grad_scores, grad_parameter


@cache_signature
class Argmax(Function):
    """ŷ(scores): rows (..., d), a parameter of shape (..., 1) or None, and the mapping."""

    @staticmethod
    def forward(scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping) -> Tensor:
        return mapping.at(parameter).rounded(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, parameter, ctx.mapping = inputs
        ctx.save_for_backward(output, parameter)
        ctx.save_for_forward(output, parameter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        y, parameter = ctx.saved_tensors
        return *gradients(ctx.mapping, y, parameter, grad, ctx.needs_input_grad), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, scores: Tensor, parameter: Any, mapping: Any) -> Any:
        size = info.batch_size
        rows, parameter = _front(scores, in_dims[0], size), _front(parameter, in_dims[1], size)
        return ForwardArgmax.apply(rows, parameter, mapping), 0


class ForwardArgmax(Argmax):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, scores_t: Tensor | None, parameter_t: Tensor | None, _: None) -> Any:
        y, parameter = ctx.saved_tensors
        mapping = ctx.mapping.at(parameter)
        return _total(
            None if scores_t is None else jacobian_product(mapping, y, scores_t),
            None if parameter_t is None else mapping.parameter_jvp(y) * parameter_t,
        )


class EagerArgmax(Argmax):
    """The same for eager calls, without transforms: the cheapest to call."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping
    ) -> Tensor:
        y = mapping.at(parameter).rounded(scores)
        ctx.mapping = mapping
        ctx.save_for_backward(y, parameter)
        return y

    setup_context = Function.setup_context  # type: ignore[assignment]
    vmap = Function.vmap  # type: ignore[assignment]


def solution(scores: Tensor, parameter: Tensor | None, mapping: AbstractMapping) -> Tensor:
    """ŷ(scores) with whatever derivatives are asked for."""
    if isinstance(mapping, HasClosure) and mapping.is_learned(scores):
        return mapping.learned_solution(scores)
    if torch.compiler.is_compiling():
        check_exportable(mapping)
        if is_differentiated():
            break_graph_if_differentiated()
            outside: Any = torch.compiler.disable(solution)
            return outside(scores, parameter, mapping)
        return Argmax.apply(scores, varying(scores, parameter, mapping), mapping)
    register_sharding(scores)
    if is_tracing():
        return traced_solution(scores, parameter, mapping)
    if is_transformed():
        return ForwardArgmax.apply(scores, parameter, mapping)
    if torch.is_grad_enabled() and (scores.requires_grad or parameter is not None):
        return EagerArgmax.apply(scores, parameter, mapping)
    return mapping.at(parameter).rounded(scores)


@cache_signature
class Max(Function):
    """max_Ω(scores), less the target's score where a target is given, and ŷ beside it.

    The gradient in scores is ŷ, less one at the target: the Fenchel-Young loss needs no more.
    """

    @staticmethod
    def forward(
        scores: Tensor, parameter: Tensor | None, target: Tensor | None, mapping: AbstractMapping
    ) -> tuple[Tensor, Tensor]:
        value, y = mapping.at(parameter).solve_max(to_solver_type(scores, mapping), target)
        return value, y.to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        _, parameter, target, ctx.mapping = inputs
        ctx.save_for_backward(output[1], parameter, target)
        ctx.save_for_forward(output[1], parameter, target)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor | None, grad_y: Tensor | None) -> Any:
        y, parameter, target = ctx.saved_tensors
        mapping = ctx.mapping.at(parameter)
        grad_scores = grad_parameter = None
        if grad_value is not None:
            rows = grad_value.unsqueeze(-1)
            if ctx.needs_input_grad[0]:
                grad_scores = rows * y
                if target is not None:
                    add = grad_scores.scatter_add if is_recorded() else grad_scores.scatter_add_
                    grad_scores = add(-1, target, -rows)
            if ctx.needs_input_grad[1]:
                grad_parameter = -rows * mapping.parameter_omega(y).unsqueeze(-1)
        if grad_y is not None:
            if ctx.needs_input_grad[0]:
                grad_scores = _total(grad_scores, jacobian_product(mapping, y, grad_y))
            if ctx.needs_input_grad[1]:
                slope = mapping.parameter_vjp(y, grad_y)
                grad_parameter = _total(grad_parameter, slope)
        if grad_scores is not None:  # the value's own is wider than half precision
            grad_scores = grad_scores.to(y.dtype)
        return grad_scores, grad_parameter, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, scores: Tensor, parameter: Any, target: Any, mapping: Any
    ) -> Any:
        rows = [
            _front(value, dim, info.batch_size)
            for value, dim in zip((scores, parameter, target), in_dims, strict=False)
        ]
        return ForwardMax.apply(*rows, mapping), (0, 0)


class ForwardMax(Max):
    """The same with forward-mode derivatives, which torch.compile does not trace."""

    @staticmethod
    @forward_rule
    def jvp(ctx: Any, scores_t: Any, parameter_t: Any, _: None, __: None) -> Any:
        y, parameter, target = ctx.saved_tensors
        mapping = ctx.mapping.at(parameter)
        value_t = y_t = None
        if scores_t is not None:
            wide = torch.promote_types(y.dtype, torch.float32)
            value_t = (y * scores_t).sum(-1, dtype=wide)
            if target is not None:
                value_t = value_t - scores_t.gather(-1, target).squeeze(-1)
            y_t = jacobian_product(mapping, y, scores_t)
        if parameter_t is not None:
            value_t = _total(value_t, -parameter_t.squeeze(-1) * mapping.parameter_omega(y))
            y_t = _total(y_t, mapping.parameter_jvp(y) * parameter_t)
        return value_t, y_t


class StateMax(Function):
    """max_Ω as `Max` gives it, from which only a few numbers per row are kept beside the scores.

    The gradient is computed from them in one pass; a second derivative solves again.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        scores: Tensor,
        parameter: Tensor | None,
        target: Tensor | None,
        mapping: AbstractMapping,
        inplace: bool,
    ) -> Tensor:
        stateful: Any = mapping.at(parameter)
        value, state = stateful.solve_state(to_solver_type(scores, mapping), target)
        ctx.mapping, ctx.inplace = mapping, inplace and scores.is_contiguous()
        ctx.save_for_backward(scores, state, parameter, target)
        return value

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor) -> Any:
        scores, state, parameter, target = ctx.saved_tensors
        mapping = ctx.mapping.at(parameter)
        rows = grad_value.unsqueeze(-1)
        if not is_recorded() and not ctx.needs_input_grad[1]:
            weights = rows.to(torch.promote_types(rows.dtype, torch.float32))
            gradient = mapping.gradient(scores, state, target, weights, ctx.inplace)
            if ctx.inplace:
                torch.autograd.graph.increment_version(scores)
                gradient = gradient.detach()
            return gradient, None, None, None, None
        y = solution(scores, parameter, ctx.mapping)
        grad_scores = grad_parameter = None
        if ctx.needs_input_grad[0]:
            grad_scores = rows * y
            if target is not None:
                grad_scores = grad_scores.scatter_add(-1, target, -rows)
            grad_scores = grad_scores.to(scores.dtype)
        if ctx.needs_input_grad[1]:
            grad_parameter = -rows * mapping.parameter_omega(y).unsqueeze(-1)
        return grad_scores, grad_parameter, None, None, None


def value(
    scores: Tensor,
    parameter: Tensor | None,
    target: Tensor | None,
    mapping: AbstractMapping,
    inplace: bool = False,
) -> Tensor:
    """max_Ω(scores), less the target's score if given, with whatever derivatives are asked for."""
    if isinstance(mapping, HasClosure) and mapping.is_learned(scores):
        return mapping.learned_value(scores, target)
    if torch.compiler.is_compiling():
        check_exportable(mapping)
        if is_differentiated():
            break_graph_if_differentiated()
            outside: Any = torch.compiler.disable(value)
            return outside(scores, parameter, target, mapping)
        return Max.apply(scores, varying(scores, parameter, mapping), target, mapping)[0]
    register_sharding(scores)
    if is_tracing():
        return traced_value(scores, parameter, target, mapping)
    if is_transformed() or not isinstance(mapping, HasState):
        return ForwardMax.apply(scores, parameter, target, mapping)[0]
    return StateMax.apply(scores, parameter, target, mapping, inplace)
