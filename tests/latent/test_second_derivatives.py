"""Second derivatives of estimators that sample are unbiased."""

from __future__ import annotations

import pytest
import torch
from members import CUSTOM, Members, assert_mean
from torch import Tensor

from conftest import identify
from fenchel import Bits, Budget, Matching, Sequence
from fenchel.latent import marginalize
from fenchel.latent.estimators import AbstractEstimator, ScoreFunction, SelfCritic, SumAndSample
from fenchel.structures import Perturbed

MANY = 20_000


def second_derivatives(value: Tensor, scores: Tensor, weight: Tensor, v: Tensor) -> list[Tensor]:
    """Those of a value along v in the scores, in the scores and in another parameter."""
    (gradient,) = torch.autograd.grad(value, scores, create_graph=True)
    return list(torch.autograd.grad((gradient * v).sum(), [scores, weight], retain_graph=True))


def check(model: Members, p: Tensor, estimator: AbstractEstimator) -> None:
    v = torch.randn(model.scores.shape).double()
    value = (p * model.table()).sum()
    wanted = second_derivatives(value, model.scores, model.weight, v)
    scores, weight = model.copies(MANY)

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return model.loss(item, z, weight)

    outcome = marginalize(scores, loss, estimator)
    found = second_derivatives(outcome.value.sum(), scores, weight, v)
    for samples, truth in zip(found, wanted, strict=True):
        assert_mean(samples, truth)
    (of_weight,) = torch.autograd.grad(outcome.value.sum(), weight, create_graph=True)
    (mixed,) = torch.autograd.grad(of_weight.sum(), scores)
    (truth,) = torch.autograd.grad(value, model.weight, create_graph=True)
    assert_mean(mixed, torch.autograd.grad(truth.sum(), model.scores)[0])


@pytest.mark.parametrize("structure", [Bits(3), Budget(3, 2), Sequence(2, 2)], ids=identify)
def test_second_derivatives_are_unbiased(structure: Bits | Budget | Sequence) -> None:
    model = Members.of(structure)
    for estimator in (
        ScoreFunction(structure),
        ScoreFunction(structure, SelfCritic(), samples=2),
        SumAndSample(structure),
    ):
        check(model, model.totals().softmax(0), estimator)


@pytest.mark.parametrize("structure", [Matching(2, 2), CUSTOM], ids=identify)
def test_second_derivatives_of_noise_are_unbiased(structure: Matching) -> None:
    model = Members.of(structure)
    check(model, model.perturbed(0.8), ScoreFunction(Perturbed(structure, 0.8), SelfCritic()))


def test_second_derivatives_of_categories_are_unbiased() -> None:
    scores = torch.randn(4).double().requires_grad_()
    losses, v = torch.randn(2, 4).double().unbind()

    def along(value: Tensor, scores: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(value, scores, create_graph=True)
        return torch.autograd.grad((gradient * v).sum(), scores)[0]

    wanted = along(scores.softmax(0) @ losses, scores)
    for estimator in (ScoreFunction(), SumAndSample(k=2)):
        many = scores.detach().expand(MANY, 4).clone().requires_grad_()
        value = marginalize(many, lambda item, z: losses[z], estimator).value
        assert_mean(along(value.sum(), many), wanted)
