"""Mappings under torch.compile: numbers that change, torch.vmap and torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch._functorch.aot_autograd import make_boxed_func as boxed

import fenchel
from fenchel import mappings

ANNEALED: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "entmax": lambda x, value: fenchel.entmax(x, alpha=value),
    "normmax": lambda x, value: fenchel.normmax(x, alpha=value),
    "ksubset": lambda x, value: fenchel.ksubset(x, k=value),
    "gamma": lambda x, value: fenchel.sparsemax(x, gamma=value),
    "loss": lambda x, value: fenchel.Entmax(value).loss(x, torch.tensor([0, 1, 2])),
}


OLDEST = torch.__version__.startswith("2.8.")
"""The oldest PyTorch cannot compile a number that changes, or a mapping that is made in the graph
with an argument that is not named: it says so."""


class Graphs:
    """A backend that keeps the operators of this package in each graph."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.backend = aot_autograd(
            fw_compiler=self._keep, bw_compiler=lambda graph, _: boxed(graph)
        )

    def _keep(self, graph: Any, _: Any) -> Any:
        targets = (str(node.target) for node in graph.graph.nodes)
        self.calls.append([target for target in targets if target.startswith("fenchel")])
        return boxed(graph)


@pytest.mark.xfail(
    OLDEST, reason="PyTorch 2.8", raises=(BackendCompilerFailed, Unsupported), strict=True
)
@pytest.mark.parametrize("name", ANNEALED)
def test_annealed_numbers_are_compiled_twice(name: str) -> None:
    torch._dynamo.reset()
    graphs, function = Graphs(), ANNEALED[name]
    compiled = torch.compile(function, fullgraph=True, backend=graphs.backend)
    for step in range(12):
        scores = torch.randn(3, 5)
        eager, traced = (scores.clone().requires_grad_() for _ in range(2))
        y, expected = compiled(traced, 1.1 + 0.07 * step), function(eager, 1.1 + 0.07 * step)
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(traced.grad, eager.grad)
    assert len(graphs.calls) == 2
    assert graphs.calls[0] == [call.replace("Tensor", "default") for call in graphs.calls[1]]


@pytest.mark.parametrize("name", [name for name in mappings.names() if name != "general"])
def test_vmap_is_one_call_in_the_graph(name: str) -> None:
    torch._dynamo.reset()
    graphs, mapping, scores = Graphs(), mappings.get(name), torch.randn(6, 3, 5)
    for function in (mapping, mapping.max):
        compiled = torch.compile(torch.vmap(function), fullgraph=True, backend=graphs.backend)
        torch.testing.assert_close(compiled(scores), function(scores))
    assert [len(calls) for calls in graphs.calls] == [1, 1]


def weighted(x: torch.Tensor) -> torch.Tensor:
    return (fenchel.entmax(x, alpha=1.5) * torch.arange(5.0)).sum()


TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "grad": torch.func.grad(weighted),
    "grad of a value": torch.func.grad(lambda x: fenchel.Entmax(1.5).max(x).sum()),
    "mapped grad": torch.vmap(torch.func.grad(weighted)),
    "jvp": lambda x: torch.func.jvp(fenchel.entmax, (x,), (torch.ones_like(x).cumsum(-1),))[1],
    "hessian": lambda x: torch.func.hessian(fenchel.Entmax(1.5).max)(x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_by_torch_func_are_right_or_refused(name: str) -> None:
    torch._dynamo.reset()
    scores, function = torch.randn(4, 5), TRANSFORMS[name]
    expected = function(scores)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(torch.compile(function, backend="aot_eager")(scores), expected)
    torch._dynamo.reset()
    text = r"torch\.func differentiates a call" + r"|Unexpected keyword" * OLDEST
    with pytest.raises(Unsupported, match=text):
        torch.compile(function, fullgraph=True, backend="aot_eager")(scores)


def test_torch_func_of_a_compiled_mapping() -> None:
    torch._dynamo.reset()
    scores = torch.randn(4, 5)
    compiled = torch.compile(weighted, backend="aot_eager")
    expected = torch.func.grad(weighted)(scores)
    torch.testing.assert_close(torch.func.grad(compiled)(scores), expected)


def test_checkpoints_and_counted_operations() -> None:
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    scores = torch.randn(4, 5, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3])
    (expected,) = torch.autograd.grad(fenchel.Entmax(1.5).loss(scores, target), scores)
    loss = checkpoint(fenchel.Entmax(1.5).loss, scores, target, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(loss, scores)[0], expected)
    with FlopCounterMode(display=False) as counter:
        fenchel.Entmax(1.5).loss(scores @ torch.eye(5), target).backward()
    assert counter.get_total_flops() == 2 * (2 * 4 * 5 * 5)  # the product, forward and backward


def test_mappings_with_another_number_each_are_compiled_twice() -> None:
    torch._dynamo.reset()
    graphs, scores = Graphs(), torch.randn(3, 5)
    compiled = torch.compile(lambda x, m: m(x), fullgraph=True, backend=graphs.backend)
    for step in range(12):
        mapping = fenchel.Entmax(1.1 + 0.07 * step)
        torch.testing.assert_close(compiled(scores, mapping), mapping(scores))
    assert len(graphs.calls) == 2
