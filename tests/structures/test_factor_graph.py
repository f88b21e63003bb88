"""Factor graphs, against general programs, enumeration and finite differences."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from local_polytope import LocalPolytope, random_graph
from torch import Tensor

import fenchel
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


def test_a_batch_is_its_instances() -> None:
    graph = parser(4, 1)
    scores = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    posterior = sparsemap(graph, scores, tol=1e-10)
    assert posterior.converged.shape == posterior.iterations.shape == (2, 3)
    alone = sparsemap(graph, scores[1, 2], tol=1e-10)
    torch.testing.assert_close(alone.marginals, posterior.marginals[1, 2], rtol=0, atol=1e-8)
    v = torch.randn(4, 4, dtype=torch.float64)
    grads = [
        torch.autograd.grad((u * v).sum(), scores)[0][1, 2]
        for u in (alone.marginals, posterior.marginals[1, 2])
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-8)
    empty = sparsemap(graph, scores[:0])
    assert empty.marginals.shape == (0, 3, 4, 4)
    assert map_inference(graph, scores[:0]).indicator.shape == (0, 3, 4, 4)


def test_types() -> None:
    graph, scores = parser(4, 1), torch.randn(3, 4, 4)
    single, double = sparsemap(graph, scores), sparsemap(graph, scores.double())
    assert single.marginals.dtype == torch.float32
    assert single.primal_residual.dtype == torch.float64
    torch.testing.assert_close(single.marginals.double(), double.marginals, rtol=0, atol=1e-6)
    assert sparsemap(graph, scores.bfloat16()).marginals.dtype == torch.bfloat16
    assert map_inference(graph, scores).indicator.dtype == torch.float32


def test_forbidden_variables_are_zero() -> None:
    graph = parser(4, 2)
    scores = torch.randn(5, 4, 4, dtype=torch.float64)
    scores[:, 1, 2] = scores[:, 3, 0] = -torch.inf
    posterior = sparsemap(graph, scores.requires_grad_(), tol=1e-9)
    assert posterior.converged.all()
    assert (posterior.marginals[:, 1, 2] == 0).all()
    low = torch.where(scores.isinf(), -1e3, scores.detach())
    expected = sparsemap(graph, low, tol=1e-9)
    torch.testing.assert_close(posterior.marginals, expected.marginals, rtol=0, atol=1e-7)
    posterior.marginals[:, 0].sum().backward()
    assert scores.grad.isfinite().all()  # type: ignore[union-attr]
    assert (scores.grad[:, 1, 2] == 0).all()  # type: ignore[index]


@pytest.mark.parametrize("scale", [1e-6, 1e2, 1e5, 1e9])
def test_scores_of_any_size(scale: float) -> None:
    scores = scale * torch.randn(3, 5, 5, dtype=torch.float64)
    posterior = sparsemap(parser(5, 1), scores)
    assert posterior.converged.all()
    assert (posterior.iterations <= 500).all()
    best = map_inference(parser(5, 1), scores)
    if scale > 1e4:  # the scores outweigh the regularizer
        torch.testing.assert_close(posterior.marginals, best.indicator, rtol=0, atol=1e-5)


def test_ties() -> None:
    posterior = sparsemap(parser(4, 2), torch.zeros(4, 4), tol=1e-9)
    assert posterior.converged
    torch.testing.assert_close(posterior.marginals, torch.full((4, 4), 0.25))
    relaxed = map_inference(parser(4, 2), torch.zeros(4, 4))
    assert relaxed.converged
    assert relaxed.value == 0


def test_forbidden_extra_scores() -> None:
    graph, scores = tagger(), torch.randn(4, 2, dtype=torch.float64)
    transitions = torch.tensor([[0.5, -torch.inf], [0.0, 0.5]], dtype=torch.float64)
    coupling = torch.tensor([-torch.inf, 0.5], dtype=torch.float64)
    posterior = sparsemap(graph, scores, (transitions, coupling), tol=1e-9)
    assert posterior.converged
    assert posterior.extra[0][..., 0, 1] == 0
    assert posterior.extra[1][0].abs() < 1e-8
    low = (transitions.clamp(min=-1e3), coupling.clamp(min=-1e3))
    expected = sparsemap(graph, scores, low, tol=1e-9)
    torch.testing.assert_close(posterior.marginals, expected.marginals, rtol=0, atol=1e-6)
    assert map_inference(graph, scores, (transitions, coupling)).value.isfinite()
    nothing = sparsemap(graph, scores, (torch.full_like(transitions, -torch.inf), coupling))
    assert not nothing.feasible


def test_forbidden_variables_that_are_negated() -> None:
    graph = FactorGraph((3,))
    graph.add(Xor(), graph.variables, negated=torch.tensor(True))  # exactly one is off
    scores = torch.zeros(2, 3)
    scores[0, 1] = scores[1, 1] = scores[1, 2] = -torch.inf
    posterior = sparsemap(graph, scores)
    assert posterior.feasible.tolist() == [True, False]
    torch.testing.assert_close(posterior.marginals[0], torch.tensor([1.0, 0.0, 1.0]))


def test_infeasible_graphs() -> None:
    graph = FactorGraph((3,))
    graph.add(Xor(), torch.tensor([0, 1, 2]))
    graph.add(Budget(2, 2, exact=True), torch.tensor([0, 1]))
    posterior = sparsemap(graph, torch.randn(4, 3))
    assert not posterior.feasible.any()
    assert not posterior.converged.any()
    assert (posterior.marginals == 0).all()
    relaxed = map_inference(graph, torch.randn(4, 3))
    assert (relaxed.value == -torch.inf).all()
    assert not relaxed.is_integral.any()


def test_one_infeasible_instance_does_not_disturb_others() -> None:
    graph = FactorGraph((3,))
    graph.add(Xor(), torch.tensor([[0, 1], [1, 2]]))
    scores = torch.randn(4, 3, dtype=torch.float64)
    scores[1, :2] = -torch.inf
    scores[2, 0] = torch.nan
    posterior = sparsemap(graph, scores)
    assert posterior.feasible.tolist() == [True, False, True, True]
    assert posterior.converged.tolist() == [True, False, False, True]
    assert (posterior.marginals[1] == 0).all()
    assert posterior.marginals[2].isnan().all()
    alone = sparsemap(graph, scores[3])
    torch.testing.assert_close(posterior.marginals[3], alone.marginals, rtol=0, atol=1e-5)


def test_a_limit_of_rounds_ends_with_a_warning() -> None:
    scores = torch.randn(3, 5, 5, dtype=torch.float64)
    with pytest.warns(fenchel.ConvergenceWarning, match="raise `max_iter`, for example to 20"):
        posterior = sparsemap(parser(5, 1), scores, max_iter=2)
    assert not posterior.converged.any()
    assert (posterior.iterations == 2).all()


def test_warm_start() -> None:
    graph, scores = parser(6, 1), torch.randn(3, 6, 6, dtype=torch.float64)
    first = sparsemap(graph, scores, tol=1e-8)
    again = sparsemap(graph, scores, tol=1e-8, start=first)
    assert (again.iterations <= 3).all()
    torch.testing.assert_close(again.marginals, first.marginals, rtol=0, atol=1e-6)
    graph.add(Xor(), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="present factors of the graph"):
        sparsemap(graph, scores, start=first)
    with pytest.raises(TypeError, match="`start` must be a GraphPosterior"):
        sparsemap(graph, scores, start=sparsemap(Choice(3), scores[0, 0, :3]))


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
    with pytest.raises(ValueError, match=r"`coupling` must have shape"):
        sparsemap(graph, torch.zeros(2, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="`method` must be None for a FactorGraph"):
        sparsemap(graph, torch.zeros(2, 2), method="away")
    with pytest.raises(ValueError, match="`regularize_extra` must be False"):
        sparsemap(graph, torch.zeros(2, 2), regularize_extra=True)
    with pytest.raises(ValueError, match="`lengths` and `mask` must be None"):
        sparsemap(graph, torch.zeros(2, 2), lengths=torch.tensor(1))
