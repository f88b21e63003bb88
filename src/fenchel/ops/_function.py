"""What autograd functions with a `setup_context` share."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch.autograd import Function

F = TypeVar("F", bound=type[Function])


def signed(function: F) -> F:
    """Notes the signature of `forward`: PyTorch asks for it at every call, and working it out takes
    longer than a small solve."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


def eager(function: F) -> F:
    """The same function where neither torch.compile nor a transform looks: the cheapest to call."""

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = function.forward(*inputs)
        function.setup_context(ctx, inputs, output)
        return output

    usual = {name: getattr(Function, name) for name in ("setup_context", "jvp", "vmap")}
    members = {"forward": staticmethod(forward), **usual}
    return type(f"Eager{function.__name__}", (function,), members)  # type: ignore[return-value]
