"""Factor graphs, against general programs, enumeration and finite differences."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from factor_graphs import parser, random_scores, tagger
from local_polytope import LocalPolytope, random_graph
from torch import Tensor

import fenchel
from conftest import seeds
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


@pytest.mark.parametrize("seed", seeds(50, 200))
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
    ids=lambda x: type(x).__name__,
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


@pytest.mark.parametrize("seed", seeds(2, 5))
def test_gradients(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    graph = parser(3, 1)

    def marginals(scores: Tensor) -> Tensor:
        return sparsemap(graph, scores, tol=1e-12).marginals

    assert torch.autograd.gradcheck(marginals, scores, eps=1e-6, atol=1e-5)
    assert torch.autograd.gradgradcheck(marginals, scores, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("seed", seeds(2, 5))
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


@pytest.mark.parametrize("seed", seeds(12, 40))
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


def test_variables_without_factors_are_free() -> None:
    graph = FactorGraph((4,))
    graph.add(Xor(), torch.tensor([0, 1]))
    scores = torch.tensor([0.3, 0.1, 0.4, 2.0], dtype=torch.float64, requires_grad=True)
    posterior = sparsemap(graph, scores, tol=1e-10)
    expected = torch.tensor([0.6, 0.4, 0.4, 1.0], dtype=torch.float64)
    torch.testing.assert_close(posterior.marginals, expected)
    posterior.marginals[2:].sum().backward()
    torch.testing.assert_close(scores.grad, torch.tensor([0.0, 0, 1, 0]).double())
    free = FactorGraph((2,))
    assert sparsemap(free, torch.tensor([-1.0, 0.5])).marginals.tolist() == [0.0, 0.5]
    assert map_inference(free, torch.tensor([-1.0, 0.5])).indicator.tolist() == [0.0, 1.0]


def test_negated_variables() -> None:
    graph, same = FactorGraph((3,)), FactorGraph((3,))
    graph.add(Or(), graph.variables, negated=torch.tensor([True, True, False]))
    same.add(Imply(), same.variables)
    scores = torch.randn(10, 3, dtype=torch.float64)
    one, other = (sparsemap(x, scores, tol=1e-10).marginals for x in (graph, same))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_extra_scores_and_their_marginals() -> None:
    graph = tagger()
    scores, transitions = torch.randn(4, 2), torch.randn(2, 2)
    posterior = sparsemap(graph, scores, (transitions, None))
    assert posterior.extra[0].shape == (1, 2, 2)
    assert posterior.extra[1] is None
    assert posterior.factors[0].weights.dtype == torch.float32
    torch.testing.assert_close(posterior.extra[0].sum(), torch.tensor(3.0), rtol=0, atol=1e-5)
    coupling = torch.randn(3, 2)
    batch = sparsemap(graph, scores.expand(3, 4, 2), (None, coupling))
    assert batch.extra[0] is None
    assert batch.extra[1].shape == (3, 2)
    alone = sparsemap(graph, scores, (None, coupling[1]))
    torch.testing.assert_close(alone.extra[1], batch.extra[1][1], rtol=0, atol=1e-5)
    best = map_inference(graph, scores, (transitions, coupling[0]))
    assert best.extra[0].shape == (1, 2, 2)
    assert best.extra[1].shape == (2,)


def test_a_graph_has_no_structures_of_its_own() -> None:
    posterior = sparsemap(parser(3, 1), torch.zeros(3, 3))
    for name in ("codes", "weights", "support_size", "gap"):
        with pytest.raises(AttributeError, match="`factors` has those of each factor"):
            getattr(posterior, name)
    assert repr(posterior).startswith("GraphPosterior of 1 instances of FactorGraph((3, 3)")


def test_forward_mode_and_function_transforms() -> None:
    graph, scores = parser(3, 1), torch.randn(2, 3, 3, dtype=torch.float64)

    def marginals(scores: Tensor) -> Tensor:
        return sparsemap(graph, scores, tol=1e-10).marginals

    backward = torch.autograd.functional.jacobian(marginals, scores)
    torch.testing.assert_close(torch.func.jacrev(marginals)(scores), backward)
    tangent = torch.randn_like(scores)
    _, forward = torch.func.jvp(marginals, (scores,), (tangent,))
    expected = (backward * tangent).flatten(3).sum(3)
    torch.testing.assert_close(forward, expected)
    with pytest.raises(NotImplementedError, match=r"torch\.vmap cannot map SparseMAP"):
        torch.func.vmap(marginals)(scores)


def test_losses() -> None:
    graph, scores = parser(4, 2), torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    target = map_inference(graph, torch.randn(3, 4, 4, dtype=torch.float64)).indicator
    loss = fenchel.structured_loss(graph, scores, target, reduction="sum", tol=1e-9)
    (gradient,) = torch.autograd.grad(loss, scores)
    expected = sparsemap(graph, scores, tol=1e-9).marginals - target
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert fenchel.structured_loss(graph, scores, target, kind="perceptron") >= 0


def test_what_is_intractable_is_refused() -> None:
    graph, scores = parser(3, 1), torch.zeros(3, 3)
    for function in (fenchel.log_partition, fenchel.marginals):
        with pytest.raises(NotImplementedError, match=r"FactorGraph are intractable.*sparsemap"):
            function(graph, scores)


def test_wrong_arguments() -> None:
    graph = FactorGraph((2, 2))
    with pytest.raises(TypeError, match="`shape` must be a tuple, got int"):
        FactorGraph(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`shape` must have at least one dimension"):
        FactorGraph(())
    with pytest.raises(TypeError, match="`structure` must be a structure"):
        graph.add("xor", graph.variables)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="other than a graph"):
        graph.add(FactorGraph((2,)), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"`index` must be a torch\.Tensor, got list"):
        graph.add(Xor(), [0, 1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`index` must have integers"):
        graph.add(Xor(), torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="below the number of variables, 4; got 4"):
        graph.add(Xor(), torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"`index` must have shape \(F, 3\), got \(1, 2\)"):
        graph.add(Choice(3), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match=r"`index` must have shape \(F, d\)"):
        graph.add(Xor(), torch.zeros(1, 1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="`index` must not be empty"):
        graph.add(Xor(), torch.zeros(0, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="`negated` must be a boolean"):
        graph.add(Xor(), torch.tensor([0, 1]), negated=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="`negated` must broadcast"):
        graph.add(Xor(), torch.tensor([0, 1]), negated=torch.ones(3, dtype=torch.bool))
    graph.add(Pair(), torch.tensor([[0, 1], [2, 3]]))
    message = (
        r"`coupling` must have shape \(...\), where ... broadcasts to the batch dimensions "
        r"\(5, 2\); got \(3,\). The last of these .* of one `add`, here 2 × Pair\(\)"
    )
    with pytest.raises(ValueError, match=message):
        sparsemap(graph, torch.zeros(5, 2, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="`method` must be None for a FactorGraph"):
        sparsemap(graph, torch.zeros(2, 2), method="away")
    with pytest.raises(ValueError, match="`regularize_extra` must be False"):
        sparsemap(graph, torch.zeros(2, 2), regularize_extra=True)
    with pytest.raises(ValueError, match="`lengths` and `mask` must be None"):
        sparsemap(graph, torch.zeros(2, 2), lengths=torch.tensor(1))
