"""What every `torch.autograd.Function` with a `setup_context` shares."""

from __future__ import annotations

import inspect
from typing import TypeVar

from torch.autograd import Function

F = TypeVar("F", bound=type[Function])


def signed(function: F) -> F:
    """Notes the signature of `forward`: PyTorch asks for it at every call, and working it out takes
    longer than a small solve."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function
