"""What the tests of the binding share: calls with it and without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Entmax, Softmax, Sparsemax, mappings
from fenchel.ops import _binding

IS_LOADED = _binding.STATUS.startswith("loaded")
needs_binding = pytest.mark.skipif(
    not IS_LOADED and not os.environ.get("CI"), reason=f"the binding is {_binding.STATUS}"
)
SOLUTION, LOSS = "BoundArgmaxBackward", "BoundClassLossBackward"
REDUCTIONS = ("mean", "sum")
WITH_STATE = (Softmax(), Sparsemax(), Entmax(1.5), Entmax(3))


@contextmanager
def without_binding() -> Iterator[None]:
    """All classes of mappings without what the binding gives them."""
    with pytest.MonkeyPatch.context() as patch:
        for mapping in mappings.examples():
            patch.setattr(type(mapping), "_solver", None)
            patch.setattr(type(mapping), "_class_loss", None)
        yield


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """The result with the binding and without it."""
    with_it = call()
    with without_binding():
        return with_it, call()


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def name_of(y: Tensor) -> str:
    """The name of the node that made a tensor."""
    assert y.grad_fn is not None
    return y.grad_fn.name()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)
