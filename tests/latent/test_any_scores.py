"""Estimators for scores behind the end of an item, of no outcome, very large, and NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel import Sequence
from fenchel.latent import marginalize
from fenchel.latent.estimators import ScoreFunction
from fenchel.structures import Perturbed


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

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return z[:, 0, 0]

    estimator = ScoreFunction(Perturbed(Sequence(3, 2)))
    outcome = marginalize(
        torch.zeros(2, 3, 2), loss, estimator, extra_scores=transitions, lengths=[1, 2]
    )
    assert outcome.kl()[0] == 0
    assert outcome.kl()[1] == 450
    single = ScoreFunction(Perturbed(Sequence(1, 2)))
    assert marginalize(torch.zeros(1, 2), loss, single, extra_scores=transitions).kl() == 0
