"""How a call is executed: eagerly, compiled, traced, or under torch.func and forward-mode AD."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _has_storage,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch._C._autograd import _profiler_enabled
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    is_legacy_batchedtensor,
)
from torch.autograd import Function, forward_ad

F = TypeVar("F", bound=type[Function])
_PLAIN = (Tensor, torch.nn.Parameter)


def is_transformed() -> bool:
    """Whether forward-mode AD or a torch.func transform is active."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def has_tangent(value: Tensor) -> bool:
    """Whether a tensor is a dual number of forward-mode AD."""
    if forward_ad._current_level < 0 or is_legacy_batchedtensor(value):
        return False
    return forward_ad.unpack_dual(value).tangent is not None


def is_recorded() -> bool:
    """Whether autograd, a compiler or a transform follows the operations, so that these must be
    differentiable; if not, a kernel without derivatives may run."""
    return torch.compiler.is_compiling() or torch.is_grad_enabled() or is_transformed()


def is_eager(*arguments: Any) -> bool:
    """Whether tensors among these are plain ones in an eager call: no subclass, compiler, tracer,
    transform, dispatch mode or profiler is involved. Then an operator may call its kernel at once.
    """
    if (
        torch.compiler.is_compiling()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _is_tracing()
        or _len_torch_dispatch_stack()
        or _profiler_enabled()
    ):
        return False
    for value in arguments:
        if isinstance(value, Tensor) and not (
            type(value) in _PLAIN
            and _has_storage(value)
            and not value._is_zerotensor()
            and not value.is_neg()
        ):
            return False
    return True


def is_differentiated() -> bool:
    """Whether forward-mode AD, or a torch.func transform other than vmap, is active."""
    levels = get_interpreter_stack() or ()
    return forward_ad._current_level >= 0 or any(
        level.key() != TransformType.Vmap for level in levels
    )


# torch.compile takes the answer as a constant of its graph.
is_differentiated._dynamo_marked_constant = True  # type: ignore[attr-defined]


def break_graph_if_differentiated() -> None:
    """Leaves forward mode and derivatives by torch.func to eager execution: torch.compile would
    lose them."""
    if is_differentiated():
        torch._dynamo.graph_break(
            "forward mode or torch.func differentiates a call of fenchel here, which torch.compile "
            "cannot trace; leave fullgraph=True out, or take the derivative by `backward`."
        )


def cache_signature(function: F) -> F:
    """Keeps the signature of `forward`. PyTorch asks for it at every call of a function with a
    `setup_context`, and computing it takes longer than a small solve."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


def forward_rule(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """The `jvp` of an autograd function, with derivatives of its own in forward mode.

    PyTorch switches forward mode off inside, and would take the tangents of outer levels for zero.
    """

    @wraps(jvp)
    def rule(ctx: Any, *tangents: Tensor | None) -> Any:
        if not _are_functorch_transforms_active():  # no other levels
            return jvp(ctx, *tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            return jvp(_Outside(ctx), *map(_primal, tangents))

    return rule


class _Outside:
    """A context whose saved tensors have no tangents of the level that is computed."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = tuple(map(_primal, ctx.saved_tensors))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _primal(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return forward_ad.unpack_dual(value, level=0).primal


def eager_apply(function: type[Function]) -> Callable[..., Any]:
    """`function.apply` for eager calls: without what it does for torch.func transforms."""
    return super(Function, function).apply  # type: ignore[misc]


def eager(function: F) -> F:
    """A copy of an autograd function for eager calls, without transforms: the cheapest to call."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    usual = {name: getattr(Function, name) for name in ("setup_context", "jvp", "vmap")}
    members = {"forward": staticmethod(forward), **usual}
    return type(f"Eager{function.__name__}", (function,), members)  # type: ignore[return-value]
