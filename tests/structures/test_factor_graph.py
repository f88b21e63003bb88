"""Factor graphs, against general programs, enumeration and finite differences."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from local_polytope import LocalPolytope, random_graph
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
from fenchel.structures import Imply, Knapsack, Or, Pair, Xor, XorOut
from fenchel.structures._base import AbstractStructure


def random_scores(
    graph: FactorGraph, *batch: int
) -> tuple[Tensor, tuple[Tensor | None, ...] | None]:
    """Scores, and couplings for the groups of pairs."""
    scores = torch.randn(*batch, *graph.shape, dtype=torch.float64)
    extra = tuple(
        torch.randn(*batch, group.count, dtype=torch.float64)
        if isinstance(group.factor, Pair)
        else None
        for group in graph.groups
        if group.factor.extra_names
    )
    return scores, extra or None


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs_against_general_programs(seed: int) -> None:
    torch.manual_seed(seed)
    graph = random_graph(random.Random(seed))
    scores, extra = random_scores(graph)
    couplings = torch.cat([torch.zeros(0).double(), *(x for x in extra or () if x is not None)])
    truth = LocalPolytope(graph)
    posterior = sparsemap(graph, scores, extra, tol=1e-9)
    relaxed = map_inference(graph, scores, extra)
    if truth.program.best(scores, couplings) is None:
        assert not posterior.feasible
        assert not posterior.converged
        assert (posterior.marginals == 0).all()
        assert relaxed.value == -torch.inf
        return
    assert posterior.feasible
    assert posterior.converged
    assert max(posterior.primal_residual, posterior.dual_residual) <= 1e-9
    expected = sparsemap(truth, scores, couplings, tol=1e-12)
    torch.testing.assert_close(posterior.marginals, expected.marginals, rtol=0, atol=1e-6)
    assert relaxed.converged
    best = map_inference(truth, scores, couplings)
    torch.testing.assert_close(relaxed.value, best.value, rtol=0, atol=1e-5)
    if relaxed.is_integral:
        torch.testing.assert_close(relaxed.indicator, best.indicator, rtol=0, atol=1e-6)


def joint_structure(graph: FactorGraph) -> Custom:
    """The zeros and ones that satisfy all factors of a graph of logic factors."""
    n = graph.shape[0]
    points = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=torch.float64)
    for group in graph.groups:
        for index in group.index:
            part = points[:, index]
            points = points[(group.factor.project(part) - part).abs().amax(1) < 1e-9]

    def best(scores: Tensor) -> Tensor:
        return points[(scores @ points.T).argmax(-1)]

    return Custom((n,), best, batched=True)


def test_graphs_without_cycles_are_exact() -> None:
    graph = FactorGraph((7,))
    graph.add(Xor(), torch.tensor([0, 1, 2]))
    graph.add(Or(), torch.tensor([2, 3]))
    graph.add(XorOut(), torch.tensor([4, 5, 3]))
    graph.add(Imply(), torch.tensor([5, 6]))
    scores = 2 * torch.randn(30, 7, dtype=torch.float64)
    joint = joint_structure(graph)
    posterior = sparsemap(graph, scores, tol=1e-10)
    truth = sparsemap(joint, scores, tol=1e-13)
    torch.testing.assert_close(posterior.marginals, truth.marginals, rtol=0, atol=1e-7)
    best, expected = map_inference(graph, scores), map_inference(joint, scores)
    assert best.is_integral.all()
    assert best.indicator.equal(expected.indicator)
    torch.testing.assert_close(best.value, expected.value)


@pytest.mark.parametrize(
    "factor",
    [
        DependencyTree(3),
        Sequence(3, 2),
        Matching(3, 3),
        Budget(5, 2),
        Choice(4),
        Bits(3),
        Xor(4),
        Knapsack((1.0, 2.0, 3.0), 2.5),
        next(iter(Custom.examples())),
    ],
    ids=str,
)
def test_a_single_factor_is_sparsemap(factor: AbstractStructure) -> None:
    graph = FactorGraph(factor.shape)
    graph.add(factor, graph.variables)
    scores = torch.randn(4, *factor.shape, dtype=torch.float64)
    posterior = sparsemap(graph, scores, tol=1e-10)
    expected = sparsemap(factor, scores, tol=1e-13)
    torch.testing.assert_close(posterior.marginals, expected.marginals, rtol=0, atol=1e-8)
    (inside,) = posterior.factors
    torch.testing.assert_close(inside.marginals[:, 0], posterior.marginals, rtol=0, atol=1e-8)
    torch.testing.assert_close(inside.weights.sum(-1), torch.ones(4, 1).double())


def parser(n: int, children: int) -> FactorGraph:
    """Trees whose words have few children; the root is the diagonal."""
    graph = FactorGraph((n, n))
    graph.add(DependencyTree(n), graph.variables)
    others = ~torch.eye(n, dtype=torch.bool)
    graph.add(Budget(n - 1, children), graph.variables[others].reshape(n, n - 1))
    return graph


def tagger() -> FactorGraph:
    """A sequence of four positions and two tags, in which the second tag occurs, with pairs."""
    graph = FactorGraph((4, 2))
    graph.add(Sequence(4, 2), graph.variables)
    graph.add(Or(), graph.variables[:, 1])
    graph.add(Pair(), torch.tensor([[1, 5], [3, 7]]))
    return graph


def test_trees_with_few_children() -> None:
    scores = torch.randn(6, 5, 5, dtype=torch.float64)
    scores[:, 1] += 2.0
    posterior = sparsemap(parser(5, 2), scores)
    outside = ~torch.eye(5, dtype=torch.bool)
    children = torch.where(outside, posterior.marginals, 0.0).sum(-1)
    assert (children <= 2 + 1e-5).all()
    assert (
        torch.where(outside, sparsemap(DependencyTree(5), scores).marginals, 0.0).sum(-1) > 2
    ).any()
    torch.testing.assert_close(
        posterior.marginals.sum(1), torch.ones(6, 5).double(), rtol=0, atol=1e-5
    )
    trees, budgets = posterior.factors
    assert trees.codes.shape[:2] == (6, 1)
    assert budgets.codes.shape[:2] == (6, 5)
    best = map_inference(parser(5, 2), scores)
    degree = torch.where(outside, best.indicator, 0.0).sum(-1)
    assert (degree <= 2 + 1e-5).all()


@pytest.mark.parametrize("seed", range(5))
def test_gradients(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    graph = parser(3, 1)

    def marginals(scores: Tensor) -> Tensor:
        return sparsemap(graph, scores, tol=1e-12).marginals

    assert torch.autograd.gradcheck(marginals, scores, eps=1e-6, atol=1e-5)
    assert torch.autograd.gradgradcheck(marginals, scores, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_gradients_of_extra_scores(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    transitions = torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    coupling = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    graph = tagger()

    def outputs(scores: Tensor, transitions: Tensor, coupling: Tensor) -> tuple[Tensor, ...]:
        posterior = sparsemap(graph, scores, (transitions, coupling), tol=1e-12)
        return posterior.marginals, *posterior.extra

    inputs = (scores, transitions, coupling)
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_random_graphs(seed: int) -> None:
    torch.manual_seed(seed)
    graph = random_graph(random.Random(seed))
    scores, extra = random_scores(graph)
    if not sparsemap(graph, scores, extra).feasible:
        scores.requires_grad_()
        sparsemap(graph, scores, extra).marginals.sum().backward()
        assert (scores.grad == 0).all()
        return

    def marginals(scores: Tensor) -> Tensor:
        return sparsemap(graph, scores, extra, tol=1e-12).marginals

    assert torch.autograd.gradcheck(marginals, scores.requires_grad_(), eps=1e-6, atol=1e-5)
