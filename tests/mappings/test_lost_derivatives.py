"""Graphs that have lost what differentiates an operator: right derivatives, or an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import fenchel

X, V = (1.0, 0.6, 0.1), (1.0, 2.0, -1.0)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "entmax": lambda x: fenchel.entmax(x) + x,
    "max": lambda x: fenchel.Sparsemax().max(x),
    "loss": lambda x: fenchel.fenchel_young_loss("softmax", x, torch.tensor(0)) + x.sum(),
}


class Model(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def tangent(function: Callable[[Tensor], Tensor]) -> Tensor:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(*(torch.tensor(x, dtype=torch.float64) for x in (X, V)))
        return forward_ad.unpack_dual(function(x)).tangent


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_forward_mode_through_a_compiled_function(function: Callable[[Tensor], Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(tangent(compiled), tangent(function))
    torch.testing.assert_close(compiled(torch.tensor(X)), function(torch.tensor(X)))


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_forward_mode_through_a_graph_that_is_there(function: Callable[[Tensor], Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager")
    compiled(torch.tensor(X, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="has no derivative in this graph"):
        tangent(compiled)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_an_exported_program_has_no_derivative(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    program = torch.export.export(Model(function), (x.detach(),)).module()
    value = program(x)
    torch.testing.assert_close(value, function(x))
    with pytest.raises(NotImplementedError, match=r"exported.*: differentiate the model itself"):
        torch.autograd.grad(value.sum(), x)
    with pytest.raises(NotImplementedError, match="has no derivative in this graph"):
        tangent(program)
