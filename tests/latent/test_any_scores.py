"""Estimators for scores behind the end of an item, of no outcome, very large, and NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Bits, Budget, Choice, DependencyTree, Matching, Sequence, sparsemap
from fenchel.latent import estimators, marginalize
from fenchel.latent.estimators import (
    Exact,
    GumbelSoftmax,
    ScoreFunction,
    Spigot,
    StraightThrough,
    SumAndSample,
    TopK,
)
from fenchel.structures import AbstractStructure, Perturbed

STRUCTURES = [
    Choice(3),
    Bits(3),
    Budget(3, 2),
    Sequence(3, 2),
    DependencyTree(3),
    Matching(2, 2),
    None,
]
every = pytest.mark.parametrize("structure", STRUCTURES, ids=str)


def every_estimator(structure: AbstractStructure | None) -> list[estimators.AbstractEstimator]:
    """All that take the structure, in both modes."""
    kinds: list[Any] = [Exact, ScoreFunction, GumbelSoftmax, StraightThrough, Spigot]
    if not isinstance(structure, Matching):
        kinds.append(SumAndSample)
    if structure is None or isinstance(structure, Bits):
        kinds.append(TopK)
    if structure is not None:
        kinds += [lambda x, kind=kind: kind(Perturbed(x)) for kind in (ScoreFunction, Spigot)]
    return [kind(structure).train(mode) for kind in kinds for mode in (True, False)]


def loss(item: Tensor, z: Tensor) -> Tensor:
    return z.double().reshape(len(z), -1).sum(1) + 1


@every
def test_nan_stays_in_its_item(structure: AbstractStructure | None) -> None:
    shape = (3,) if structure is None else structure.shape
    scores = torch.randn(3, *shape).double()
    scores[1].view(-1)[0] = torch.nan
    scores.requires_grad_()
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    outcomes = [
        marginalize(scores, lambda item, z: weight * loss(item, z), estimator)
        for estimator in every_estimator(structure)
    ]
    if structure is not None:
        outcomes.append(marginalize(sparsemap(structure, scores), loss))
    others = torch.tensor([0, 2])
    for outcome in outcomes:
        (gradient,) = torch.autograd.grad(outcome.value.sum(), scores, retain_graph=True)
        assert outcome.value[1].isnan()
        assert gradient[1].isnan().any()
        assert outcome.value[others].isfinite().all()
        assert gradient[others].isfinite().all()
        (of_weight,) = torch.autograd.grad(outcome.value.sum(), weight, allow_unused=True)
        assert of_weight is None or of_weight.isfinite()


@pytest.mark.parametrize("structure", [Choice(3), None], ids=str)
def test_an_item_without_outcomes_has_the_value_zero(structure: Choice | None) -> None:
    scores = torch.randn(3, 3).double()
    scores[1] = -torch.inf
    scores.requires_grad_()
    for estimator in every_estimator(structure):
        outcome = marginalize(scores, loss, estimator)
        (gradient,) = torch.autograd.grad(outcome.value.sum(), scores)
        assert outcome.value[1] == 0
        assert (gradient[1] == 0).all()
        assert outcome.value.isfinite().all()
        assert gradient.isfinite().all()


def test_infinite_scores_of_a_mapping_share_the_probability() -> None:
    scores = torch.tensor([[torch.inf, 0.0, torch.inf]], requires_grad=True)
    for estimator in (ScoreFunction(), SumAndSample(k=3), GumbelSoftmax()):
        outcome = marginalize(scores, loss, estimator)
        torch.testing.assert_close(outcome.marginals, torch.tensor([[0.5, 0.0, 0.5]]))
        (gradient,) = torch.autograd.grad(outcome.value.sum(), scores)
        assert (gradient == 0).all()


@pytest.mark.parametrize("fill", [7.0, torch.nan])
@pytest.mark.parametrize("with_ends", [False, True])
def test_transitions_behind_the_end_have_no_effect(fill: float, with_ends: bool) -> None:
    transitions = torch.zeros(3, 2, 2)
    transitions[1:] = fill
    transitions.requires_grad_()
    ends = torch.zeros(2)
    extra = (transitions, ends, ends) if with_ends else transitions
    perturbed = Perturbed(Sequence(4, 2), samples=5)
    outcome = marginalize(
        torch.zeros(4, 2),
        lambda item, z: z[:, 0, 0] + 1,
        ScoreFunction(perturbed),
        extra_scores=extra,
        lengths=2,
    )
    assert outcome.kl() == 0
    assert outcome.value.isfinite()
    mean = perturbed(torch.zeros(4, 2), extra, lengths=2)[0].square().sum()
    for value in (outcome.value, outcome.kl(), mean):
        (gradient,) = torch.autograd.grad(value, transitions, retain_graph=True)
        assert (gradient[1:] == 0).all()
    assert (gradient[0] != 0).any()


def test_transitions_of_one_position_have_no_effect() -> None:
    transitions = torch.full((2, 2), 15.0, requires_grad=True)

    estimator = ScoreFunction(Perturbed(Sequence(3, 2)))
    outcome = marginalize(
        torch.zeros(2, 3, 2), loss, estimator, extra_scores=transitions, lengths=[1, 2]
    )
    assert outcome.kl()[0] == 0
    assert outcome.kl()[1] == 450
    single = ScoreFunction(Perturbed(Sequence(1, 2)))
    assert marginalize(torch.zeros(1, 2), loss, single, extra_scores=transitions).kl() == 0


@pytest.mark.parametrize(
    ("noise", "sigma", "scores"),
    [("gumbel", 1.0, [0.0, -1e30]), ("gaussian", 1e-16, [10.0, 10.0])],
)
def test_the_noise_of_much_larger_scores_is_kept(
    noise: str, sigma: float, scores: list[float]
) -> None:
    theta = torch.tensor(scores).double().expand(5000, 2).clone().requires_grad_()
    estimator = ScoreFunction(Perturbed(Choice(2), sigma, noise=noise))
    value = marginalize(theta, lambda item, z: torch.ones(len(z)).double(), estimator).value
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    assert (gradient.std(0) * sigma > 0.8).all()
    error = gradient.std(0) / len(theta) ** 0.5
    assert (gradient.mean(0).abs() < 5 * error).all()
