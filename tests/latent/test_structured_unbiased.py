"""Estimators over structures are unbiased where they say so, by all members or in closed form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from members import CUSTOM, TRACTABLE, TWO, TWO_MEMBERS, Members, assert_mean
from torch import Tensor

from conftest import identify
from fenchel import Bits, Budget, Choice, Sequence
from fenchel.latent import estimators, log_likelihood, marginalize
from fenchel.latent.estimators import (
    GumbelSoftmax,
    LeaveOneOut,
    MovingAverage,
    ScoreFunction,
    SelfCritic,
    Spigot,
    StraightThrough,
    SumAndSample,
)
from fenchel.structures import AbstractStructure, Perturbed

MANY = 20_000
tractable = pytest.mark.parametrize("structure", TRACTABLE, ids=identify)
of_two = pytest.mark.parametrize("structure", TWO_MEMBERS, ids=identify)
ESTIMATORS: dict[str, Callable[[AbstractStructure], estimators.AbstractEstimator]] = {
    "score function": ScoreFunction,
    "self-critic": lambda structure: ScoreFunction(structure, SelfCritic(), samples=2),
    "leave one out": lambda structure: ScoreFunction(structure, LeaveOneOut(), samples=2),
    "moving average": lambda structure: ScoreFunction(structure, MovingAverage()),
    "sum and sample": SumAndSample,
    "sum three": lambda structure: SumAndSample(structure, k=3),
}


def check_unbiased(
    model: Members,
    p: Tensor,
    estimator: estimators.AbstractEstimator,
    inputs: tuple[Tensor, ...] = (),
    many: int = MANY,
    **given: object,
) -> None:
    """Value and gradients are those of Σ p(z) ℓ(z); p (K) is a function of the scores."""
    ground_truth = (p * model.table()).sum()
    wanted = torch.autograd.grad(ground_truth, [model.scores, model.weight, *inputs])
    scores, weight = model.copies(many)

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return model.loss(item, z, weight)

    marginalize(scores, loss, estimator, **given)  # type: ignore[arg-type]
    outcome = marginalize(scores, loss, estimator, **given)  # type: ignore[arg-type]
    found = torch.autograd.grad(outcome.value.sum(), [scores, weight])
    assert_mean(outcome.value.detach(), ground_truth.detach())
    assert_mean(found[0], wanted[0])
    assert_mean(found[1], wanted[1])


@tractable
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_unbiased_over_all_members(
    structure: AbstractStructure, make: Callable[..., estimators.AbstractEstimator]
) -> None:
    model = Members.of(structure)
    check_unbiased(model, model.totals().softmax(0), make(structure))


def test_unbiased_over_a_choice() -> None:
    scores = torch.randn(4).double().requires_grad_()
    losses = torch.randn(4).double()
    (wanted,) = torch.autograd.grad(scores.softmax(0) @ losses, scores)
    many = scores.detach().expand(MANY, 4).clone().requires_grad_()
    for estimator in (ScoreFunction(Choice(4)), SumAndSample(Choice(4), k=2)):
        value = marginalize(many, lambda item, z: losses[z], estimator).value
        assert_mean(torch.autograd.grad(value.sum(), many)[0], wanted)


@of_two
@pytest.mark.parametrize("sigma", [1.0, 0.5])
def test_the_score_function_of_noise_is_unbiased(
    structure: AbstractStructure, sigma: float
) -> None:
    model = Members.of(structure)
    estimator = ScoreFunction(Perturbed(structure, sigma), SelfCritic())
    check_unbiased(model, model.perturbed(sigma), estimator)


@of_two
def test_a_structure_without_exact_samples_is_perturbed(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    estimator = ScoreFunction(structure)
    assert isinstance(estimator.over, Perturbed)
    check_unbiased(model, model.perturbed(1.0), estimator)


def test_a_perturbed_choice_has_categories() -> None:
    scores, sigma = torch.randn(4).double().requires_grad_(), 0.7
    losses = torch.randn(4).double()
    (wanted,) = torch.autograd.grad((scores / sigma).softmax(0) @ losses, scores)
    many = scores.detach().expand(MANY, 4).clone().requires_grad_()
    over = Perturbed(Choice(4), sigma, noise="gumbel")

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return losses[z]

    value = marginalize(many, loss, ScoreFunction(over)).value
    assert_mean(torch.autograd.grad(value.sum(), many)[0], wanted)
    best = losses[scores.argmax()]
    assert marginalize(scores, loss, ScoreFunction(over).eval()).value == best
    for kind in (GumbelSoftmax, StraightThrough, Spigot):
        assert marginalize(scores, lambda i, z: z @ losses, kind(over).eval()).value == best
        assert marginalize(many, lambda i, z: z @ losses, kind(over)).value.shape == (MANY,)
    found = log_likelihood(scores, loss, ScoreFunction(over), samples=2000)
    torch.testing.assert_close(found.value, losses.exp().mean().log())


@pytest.mark.parametrize("structure", [Budget(4, 1, exact=True), Sequence(3, 2)], ids=identify)
def test_gumbel_noise_is_unbiased(structure: AbstractStructure) -> None:
    """With one option for each position, perturb-and-MAP is softmax."""
    model = Members.of(structure)
    estimator = ScoreFunction(Perturbed(structure, 0.7, noise="gumbel"), MovingAverage())
    check_unbiased(model, (model.totals() / 0.7).softmax(0), estimator, many=4 * MANY)


def test_gaussian_noise_of_bits_is_unbiased() -> None:
    model, sigma = Members.of(Bits(3)), 0.8
    p = torch.special.ndtr(model.scores / sigma)
    each = torch.where(model.members > 0, p, 1 - p).prod(-1)
    check_unbiased(model, each, ScoreFunction(Perturbed(Bits(3), sigma), SelfCritic()))


def test_the_score_function_of_noisy_extra_scores_is_unbiased() -> None:
    """A chain of two positions with one forbidden tag has two members, which differ in four
    scores."""
    scores = torch.tensor([[0.0, -torch.inf], [0.5, -0.2]]).double().expand(MANY, 2, 2)
    transitions, sigma = torch.randn(2, 2).double().requires_grad_(), 0.9
    gap = scores[0, 1, 0] - scores[0, 1, 1] + transitions[0, 0] - transitions[0, 1]
    p = torch.special.ndtr(gap / (2 * sigma))
    (wanted,) = torch.autograd.grad(p, transitions)
    each = transitions.detach().expand(MANY, 1, 2, 2).clone().requires_grad_()
    estimator = ScoreFunction(Perturbed(Sequence(2, 2), sigma), MovingAverage())
    for _ in range(2):  # the first learns the average
        value = marginalize(scores, lambda item, z: z[:, 1, 0], estimator, extra_scores=each).value
    assert_mean(value.detach(), p.detach())
    assert_mean(torch.autograd.grad(value.sum(), each)[0][:, 0], wanted)


def test_unbiased_with_extra_scores_and_lengths() -> None:
    scores, transitions = torch.randn(3, 2).double(), torch.randn(2, 2).double().requires_grad_()
    first, second = torch.cartesian_prod(torch.arange(2), torch.arange(2)).T  # of two positions
    losses = torch.randn(2, 2).double()
    p = (scores[0, first] + scores[1, second] + transitions[first, second]).softmax(0)
    ground_truth = (p * losses.flatten()).sum()
    (wanted,) = torch.autograd.grad(ground_truth, transitions)

    def loss(item: Tensor, z: Tensor) -> Tensor:
        assert (z[:, 2] == 0).all()
        return torch.einsum("na,nb,ab->n", z[:, 0], z[:, 1], losses)

    for estimator in (ScoreFunction(Sequence(3, 2)), SumAndSample(Sequence(3, 2), k=2)):
        each = transitions.detach().expand(MANY, 1, 2, 2).clone().requires_grad_()
        value = marginalize(
            scores.expand(MANY, 3, 2),
            loss,
            estimator,
            extra_scores=each,
            lengths=torch.full((MANY,), 2),
        ).value
        assert_mean(value.detach(), ground_truth.detach())
        assert_mean(torch.autograd.grad(value.sum(), each)[0][:, 0], wanted)


def test_the_two_members_are_those_of_the_oracle() -> None:
    assert CUSTOM.argmax(TWO).equal(TWO)
