"""Factor graphs in C++ give what the factors' own functions give in Python, and their gradients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from factor_graphs import parser, random_scores, tagger
from local_polytope import random_graph
from torch import Tensor

from fenchel import (
    Bits,
    Budget,
    Choice,
    Custom,
    DependencyTree,
    FactorGraph,
    Matching,
    Sequence,
    map_inference,
    sparsemap,
)
from fenchel.ops import _native
from fenchel.ops import factor_graph as ops
from fenchel.structures import (
    AbstractStructure,
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)
from fenchel.structures.relaxation import _admm, _jacobian
from fenchel.structures.relaxation._native import describe

pytestmark = pytest.mark.skipif(_native.LIBRARY is None, reason="compares with the C++ library")

FACTORS: dict[str, AbstractStructure] = {
    "sequence": Sequence(3, 2),
    "tree": DependencyTree(3),
    "projective_tree": DependencyTree(3, projective=True, single_root=False),
    "matching": Matching(2, 3),
    "bits": Bits(5),
    "budget": Budget(5, 2),
    "exact_budget": Budget(5, 2, exact=True),
    "choice": Choice(5),
    "xor": Xor(5),
    "at_most_one": AtMostOne(5),
    "or": Or(5),
    "imply": Imply(4),
    "xor_out": XorOut(4),
    "or_out": OrOut(5),
    "and_out": AndOut(5),
    "knapsack": Knapsack((1.0, 2.0, 0.0, 3.0, 0.5), 2.5),
    "pair": Pair(),
}


@contextmanager
def python_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if no factor were in the library."""
    with monkeypatch.context() as patch:
        for module in (_admm, _jacobian):
            patch.setattr(module, "describe", lambda consensus: None)
        yield


def results(graph: FactorGraph, scores: Tensor, extra: Any) -> tuple[Any, ...]:
    """Marginals and extra marginals, and a product with the Jacobian."""
    inputs = [x.clone().requires_grad_() for x in (scores, *(extra or ())) if x is not None]
    given = None
    if extra is not None:
        rest = iter(inputs[1:])
        given = tuple(None if x is None else next(rest) for x in extra)
    posterior = sparsemap(graph, inputs[0], given, tol=1e-9)
    outputs = [posterior.marginals, *(x for x in posterior.extra or () if x is not None)]
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
    gradients = torch.autograd.grad(outputs, inputs, vectors, allow_unused=True)
    return [x.detach() for x in outputs], gradients


def compare(
    monkeypatch: pytest.MonkeyPatch, graph: FactorGraph, scores: Tensor, extra: Any
) -> None:
    ours = results(graph, scores, extra)
    with python_rounds(monkeypatch):
        expected = results(graph, scores, extra)
    torch.testing.assert_close(ours[0], expected[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(ours[1], expected[1], rtol=0, atol=1e-6)


def test_every_kind_is_compared() -> None:
    names = set(FACTORS) - {"exact_budget", "choice"}
    assert names == set(ops.KINDS)


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("negate", [False, True], ids=["", "negated"])
def test_every_kind_of_factor(name: str, negate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    factor = FACTORS[name]
    size = int(torch.tensor(factor.shape).prod())
    n = 2 * size - 1
    graph = FactorGraph((n,))
    index = torch.stack([torch.arange(size), torch.arange(size - 1, n)])
    negated = torch.arange(size) % 2 == 0 if negate else None
    own = factor.shape
    graph.add(factor, index.reshape(2, *own), None if negated is None else negated.reshape(own))
    graph.add(Budget(n, n - 1), torch.arange(n))
    scores, extra = random_scores(graph, 6)
    if isinstance(factor, Sequence):
        extra = (torch.randn(6, 2, 2, 2, dtype=torch.float64),)
    compare(monkeypatch, graph, scores, extra)
    forbidden = scores.clone()
    forbidden[::3, 1] = -torch.inf
    ours = sparsemap(graph, forbidden, extra, tol=1e-9)
    with python_rounds(monkeypatch):
        expected = sparsemap(graph, forbidden, extra, tol=1e-9)
    assert ours.feasible.equal(expected.feasible)
    torch.testing.assert_close(ours.marginals, expected.marginals, rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    graph = random_graph(random.Random(seed))
    scores, extra = random_scores(graph, 3)
    if sparsemap(graph, scores, extra).feasible.all():
        compare(monkeypatch, graph, scores, extra)


def test_parser_and_tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    compare(monkeypatch, parser(8, 1), torch.randn(4, 8, 8, dtype=torch.float64), None)
    transitions = torch.randn(4, 1, 3, 2, 2, dtype=torch.float64)  # of each pair of neighbours
    coupling = torch.randn(4, 2, dtype=torch.float64)
    scores = torch.randn(4, 4, 2, dtype=torch.float64)
    compare(monkeypatch, tagger(), scores, (transitions, coupling))


def test_factors_that_are_solved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    known = []
    product = ops.product

    def record(*arguments: Any) -> Any:
        known.append(product(*arguments))
        return known[-1]

    monkeypatch.setattr(ops, "product", record)
    graph = FactorGraph((12, 12))
    graph.add(Matching(12, 12), graph.variables)
    graph.add(Budget(12, 3), graph.variables)
    scores = 1e-3 * torch.randn(2, 12, 12, dtype=torch.float64)
    compare(monkeypatch, graph, scores, None)
    assert known == [None]


def test_sums_that_need_exact_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    graph = parser(5, 1)
    scores = 1e9 * torch.randn(3, 5, 5, dtype=torch.float64)
    ours = sparsemap(graph, scores)
    with python_rounds(monkeypatch):
        expected = sparsemap(graph, scores)
    torch.testing.assert_close(ours.marginals, expected.marginals, rtol=0, atol=1e-6)


def test_a_factor_of_your_own_needs_python() -> None:
    graph = FactorGraph((3,))
    graph.add(Xor(), graph.variables)
    scores = torch.randn(2, 3, dtype=torch.float64)
    assert describe(sparsemap(graph, scores)._solution.consensus) is not None  # type: ignore[arg-type]
    own = next(iter(Custom.examples()))
    graph = FactorGraph(own.shape)
    graph.add(own, graph.variables)
    posterior: Any = sparsemap(graph, torch.randn(own.shape, dtype=torch.float64))
    assert describe(posterior._solution.consensus) is None
    assert posterior.converged


def test_threads_do_not_change_the_answer() -> None:
    graph, scores = parser(6, 1), torch.randn(9, 6, 6, dtype=torch.float64)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append((sparsemap(graph, scores).marginals, map_inference(graph, scores).value))
    finally:
        torch.set_num_threads(threads)
    assert all(a.equal(b) for a, b in zip(*found, strict=True))
