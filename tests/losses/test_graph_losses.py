"""Structured losses of factor graphs with extra scores, against those of structures."""

from __future__ import annotations

import pytest
import torch

from fenchel import DependencyTree, FactorGraph, Sequence, map_inference, structured_loss
from fenchel.structures import Pair, Xor

KINDS = ("perceptron", "svm", "sparsemap", "margin_sparsemap")
SEQUENCE = Sequence(3, 2)


def graph() -> FactorGraph:
    """One factor, a sequence."""
    made = FactorGraph((3, 2))
    made.add(SEQUENCE, made.variables)
    return made


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    transitions = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    best = map_inference(SEQUENCE, torch.randn(4, 3, 2, dtype=torch.float64))
    return scores, transitions, best.indicator


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_one_structure_has_its_loss(kind: str) -> None:
    scores, transitions, target = problem()
    cost = torch.rand(3, 2, dtype=torch.float64) if kind in ("svm", "margin_sparsemap") else None
    results = []
    for structure, extra in ((SEQUENCE, transitions), (graph(), transitions.unsqueeze(1))):
        loss = structured_loss(structure, scores, target, extra, kind=kind, cost=cost, tol=1e-12)
        results.append([loss, *torch.autograd.grad(loss, (scores, transitions))])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_pair_says_the_target_of_extra_scores(as_tuple: bool) -> None:
    scores, transitions, target = problem()
    z = map_inference(SEQUENCE, target * 9, torch.zeros_like(transitions)).extra.unsqueeze(1)
    extra = transitions.unsqueeze(1)
    given = ((extra,), (z,)) if as_tuple else (extra, z)
    expected = structured_loss(graph(), scores, target, given[0])
    found = structured_loss(graph(), scores, (target, given[1]), given[0])
    torch.testing.assert_close(found, expected)
    other = structured_loss(graph(), scores, (target, (0 * z,) if as_tuple else 0 * z), given[0])
    missing = (z * extra).sum((1, 2, 3)).mean()
    torch.testing.assert_close(other - missing, expected)


def test_the_best_structures_have_no_perceptron_loss() -> None:
    scores, transitions, _ = problem()
    best = map_inference(graph(), scores, transitions.unsqueeze(1))
    loss = structured_loss(graph(), scores, best, transitions.unsqueeze(1), kind="perceptron")
    torch.testing.assert_close(loss, torch.zeros_like(loss))


@pytest.mark.parametrize("target", [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)])
def test_a_pair_of_bits_by_hand(target: tuple[float, float]) -> None:
    made = FactorGraph((2,))
    made.add(Pair(), torch.tensor([0, 1]), negated=torch.tensor([False, True]))
    a, b, coupling = (torch.tensor(x, dtype=torch.float64) for x in (0.5, -0.2, 3.0))
    y = torch.tensor(target, dtype=torch.float64)
    found = structured_loss(made, torch.stack([a, b]), y, coupling, kind="perceptron")
    values = [i * a + j * b + coupling * i * (1 - j) for i in (0, 1) for j in (0, 1)]
    expected = max(values) - (y[0] * a + y[1] * b + coupling * y[0] * (1 - y[1]))
    torch.testing.assert_close(found, expected)


def test_an_extra_score_that_is_not_given_has_no_target() -> None:
    made = graph()
    made.add(Pair(), torch.tensor([0, 2]))
    made.add(Xor(), torch.tensor([0, 1]))
    scores, transitions, target = problem()
    coupling = torch.zeros(1, dtype=torch.float64)
    extra = transitions.unsqueeze(1)
    found = structured_loss(made, scores, target, (extra, None))
    torch.testing.assert_close(found, structured_loss(made, scores, target, (extra, coupling)))


def test_no_instance() -> None:
    scores = torch.zeros(0, 3, 2, requires_grad=True)
    extra = torch.zeros(0, 1, 2, 2)
    loss = structured_loss(graph(), scores, torch.zeros(0, 3, 2), extra, reduction="sum")
    loss.backward()
    assert loss == 0
    assert scores.grad is not None
    assert scores.grad.shape == scores.shape


def test_targets_that_are_no_structures_of_the_graph() -> None:
    scores, transitions, target = problem()
    extra = transitions.unsqueeze(1)
    with pytest.raises(ValueError, match="must be zeros and ones where a graph has extra scores"):
        structured_loss(graph(), scores, target / 2, extra)
    with pytest.raises(ValueError, match=r"must be a structure of the graph; for Sequence\(.*none"):
        structured_loss(graph(), scores, torch.ones_like(target), extra)
    with pytest.raises(ValueError, match=r"must have shape \(4, 1, 2, 2\) for the extra scores"):
        structured_loss(graph(), scores, (target, extra[:2].detach()), extra)
    with pytest.raises(ValueError, match="must have 1 tensors or None for the extra scores"):
        structured_loss(graph(), scores, (target, (None, None)), (extra,))


@pytest.mark.parametrize("kind", ["perceptron", "svm", "crf", "sparsemap"])
def test_losses_are_not_negative_by_rounding(kind: str) -> None:
    scores = torch.randn(200, 6, 6, dtype=torch.float64) * 10.0 ** torch.randint(1, 9, (200, 1, 1))
    scores.requires_grad_()
    target = map_inference(DependencyTree(6), scores).codes
    loss = structured_loss(DependencyTree(6), scores, target, kind=kind, reduction="none")
    assert loss.min() >= 0
    loss.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
