"""Factor graphs with scores of every kind: batches, types, sizes, forbidden and infeasible ones."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from factor_graphs import parser, tagger
from local_polytope import LocalPolytope, random_graph

import fenchel
from fenchel import (
    Budget,
    Choice,
    FactorGraph,
    map_inference,
    sparsemap,
)
from fenchel.structures import Knapsack, Or, Xor
from fenchel.structures.relaxation import _linear


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
    equal = sparsemap(parser(6, 1), scores, tol=1e-8, start=first)
    assert equal.iterations.equal(again.iterations)
    other = FactorGraph((6, 6))
    for group in graph.groups:
        other.add(group.factor, group.index.flip(0))
    with pytest.raises(ValueError, match=r"got one for another that reads like it, but is not eq"):
        sparsemap(other, scores, start=first)
    with pytest.raises(ValueError, match=r"as many instances, with scores of shape \(2, 6, 6\)"):
        sparsemap(graph, scores[:2], start=first)
    graph.add(Xor(), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="present factors of the graph; some were added after it"):
        sparsemap(graph, scores, start=first)
    with pytest.raises(TypeError, match=r"`start` must be a GraphPosterior .* got Posterior"):
        sparsemap(graph, scores, start=sparsemap(Choice(3), scores[0, 0, :3]))


@pytest.mark.parametrize("count", [3, 5, 7])
@pytest.mark.parametrize("factor", [Xor(), Or()], ids=["xor", "or"])
def test_equal_factors_are_feasible(factor: Xor | Or, count: int) -> None:
    torch.manual_seed(0)
    graph = FactorGraph((2,))
    graph.add(factor, torch.tensor([[0, 1]] * count))
    scores = 5 * torch.randn(500, 2, dtype=torch.float64)
    assert sparsemap(graph, scores).feasible.all()
    best = scores.amax(-1) if isinstance(factor, Xor) else scores.clamp(min=0).sum(-1)
    best = torch.where(best > 0, best, scores.amax(-1))
    torch.testing.assert_close(map_inference(graph, scores).value, best, rtol=0, atol=1e-4)


def test_a_result_that_is_forced_is_feasible() -> None:
    graph = FactorGraph((4,))
    graph.add(Xor(), torch.tensor([[0, 1], [0, 2], [0, 3]]))
    scores = torch.randn(200, 4, dtype=torch.float64)
    scores[:, 1:] = -torch.inf
    found = map_inference(graph, scores)
    torch.testing.assert_close(found.value, scores[:, 0])
    assert sparsemap(graph, scores).feasible.all()


@pytest.mark.parametrize("seed", range(40))
def test_what_converged_is_right_for_large_scores_with_small_differences(seed: int) -> None:
    torch.manual_seed(seed)
    graph = random_graph(random.Random(seed))
    small = torch.randint(-3, 4, (6,)).double()
    scores = torch.where(torch.rand(6) < 0.5, 1e8 + small, small)
    program = LocalPolytope(graph).program
    couplings = torch.zeros(len(program.pairs)).double()
    best = program.best(scores, couplings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fenchel.ConvergenceWarning)
        found = map_inference(graph, scores)
    if program.best(small, couplings) is None:
        assert found.value == -torch.inf
    if best is None:  # or the general program gave up
        return
    is_integral = ((best[0] - best[0].round()).abs() < 1e-9).all()
    if is_integral:
        assert found.converged
    if found.converged:
        value = (best[0] * scores).sum()
        torch.testing.assert_close(found.value, value, rtol=0, atol=1e-3 if is_integral else 0.2)


def test_large_scores_in_a_batch() -> None:
    torch.manual_seed(0)
    graph = parser(4, 1)
    small = torch.randint(-3, 4, (6, 4, 4)).double()
    scores = torch.where(torch.rand(6, 4, 4) < 0.5, 1e8 + small, small)
    scores[3], scores[4] = small[3], -torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fenchel.ConvergenceWarning)
        batch = map_inference(graph, scores)
        alone = [map_inference(graph, row) for row in scores]
    assert batch.value[4] == -torch.inf
    assert batch.converged.tolist() == [bool(x.converged) for x in alone]
    values = torch.stack([x.value for x in alone])
    torch.testing.assert_close(batch.value, values, rtol=1e-9, atol=1e-3)


def test_a_graph_without_any_allowed_variable_is_infeasible() -> None:
    scores = torch.full((2, 4, 4), -torch.inf)
    scores[1] = 0.0
    posterior = sparsemap(parser(4, 2), scores)
    assert posterior.feasible.tolist() == [False, True]
    assert posterior.converged.tolist() == [False, True]
    assert map_inference(parser(4, 2), scores).value.tolist() == [-torch.inf, 0.0]


def test_a_gap_that_is_not_closed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_linear, "MAX_ROUNDS", 8)
    scores = torch.randn(2, 6, 6, dtype=torch.float64)
    with pytest.warns(fenchel.ConvergenceWarning, match=r"values of 2 of 2 graphs may be wrong by"):
        found = map_inference(parser(6, 1), scores)
    assert not found.converged.any()


def test_gradients_of_an_instance_with_nan() -> None:
    graph = parser(3, 1)
    scores = torch.randn(3, 3, 3, dtype=torch.float64)
    scores[1, 0, 2] = torch.nan
    for function in (
        lambda x: sparsemap(graph, x).marginals.flatten(1).sum(1),
        lambda x: map_inference(graph, x).value,
    ):
        given = scores.clone().requires_grad_()
        value = function(given)
        value.sum().backward()
        assert value.isnan().tolist() == [False, True, False]
        assert (given.grad[1] == 0).all()  # type: ignore[index]
        assert given.grad.isfinite().all()  # type: ignore[union-attr]


def test_an_integral_solution_is_a_structure() -> None:
    graph = FactorGraph((3,))
    graph.add(Knapsack((1.0, 1.0, 1.0), 2.99995), graph.variables)
    found = map_inference(graph, torch.ones(3, dtype=torch.float64))
    assert not found.is_integral
    assert found.converged
    torch.testing.assert_close(found.value, torch.tensor(2.99995).double())
