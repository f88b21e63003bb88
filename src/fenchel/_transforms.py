"""How a call is executed: eagerly, compiled, traced, or under torch.func and forward-mode AD."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

F = TypeVar("F", bound=type[Function])
_PLAIN = (Tensor, torch.nn.Parameter)


def is_transformed() -> bool:
    """Whether forward-mode AD or a torch.func transform is active."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


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


def _is_differentiated() -> bool:
    """Whether a torch.func transform other than vmap is active."""
    return any(level.key() != TransformType.Vmap for level in get_interpreter_stack() or ())


# torch.compile takes the answer as a constant of its graph.
_is_differentiated._dynamo_marked_constant = True  # type: ignore[attr-defined]


def break_graph_if_differentiated() -> None:
    """Leaves derivatives by torch.func to eager execution: torch.compile would lose them."""
    if _is_differentiated():
        torch._dynamo.graph_break(
            "torch.func differentiates a mapping here, which torch.compile cannot trace; leave "
            "fullgraph=True out, or take the derivative by `backward`."
        )


def cache_signature(function: F) -> F:
    """Keeps the signature of `forward`. PyTorch asks for it at every call of a function with a
    `setup_context`, and computing it takes longer than a small solve."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


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
