"""Baselines of the score function for losses and scores that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel import Choice
from fenchel.latent import gradient_variance, marginalize
from fenchel.latent.estimators import Learned, LeaveOneOut, MovingAverage, ScoreFunction


def test_a_learned_baseline_sees_finite_scores() -> None:
    scores = torch.randn(3, 4)
    scores[0, 0] = -torch.inf
    scores[1, 2:] = torch.nan  # behind the end
    scores.requires_grad_()
    seen = []

    module = torch.nn.Linear(4, 1)
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    estimator = ScoreFunction(Choice(4), Learned(module))
    outcome = marginalize(scores, lambda item, z: z + 1.0, estimator, lengths=[4, 2, 4])
    assert outcome.value.isfinite().all()
    outcome.value.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    wanted = scores.detach().clone()
    wanted[0, 0], wanted[1, 2:] = 0.0, 0.0
    assert seen[0].equal(wanted)


def test_a_moving_average_leaves_out_losses_that_are_not_finite() -> None:
    average = MovingAverage(0.9)
    estimator = ScoreFunction(baseline=average)
    scores = torch.zeros(2, 3, requires_grad=True)

    def step(*losses: float) -> Tensor:
        marginalize(scores, lambda item, z: torch.tensor(losses)[item], estimator)
        return average.average

    torch.testing.assert_close(step(2.0, torch.inf), torch.tensor(2.0))
    torch.testing.assert_close(step(torch.nan, -torch.inf), torch.tensor(2.0))
    share = 0.1 / (0.1 * 0.9 + 0.1)
    torch.testing.assert_close(step(3.0, 5.0), torch.tensor(2.0 + share * 2.0))


def test_a_moving_average_waits_for_a_finite_loss() -> None:
    average = MovingAverage(0.9)
    average.learn(torch.zeros(()), torch.full((1, 2), torch.inf))
    assert average.average == 0
    average.learn(torch.zeros(()), torch.full((1, 2), 4.0))
    torch.testing.assert_close(average.average, torch.tensor(4.0))


def test_leaving_one_out_lowers_the_variance() -> None:
    scores = torch.randn(4, 5, requires_grad=True)

    def variance(estimator: ScoreFunction) -> float:
        def value() -> Tensor:
            return marginalize(scores, lambda item, z: z + 10.0, estimator).value.sum()

        return gradient_variance(value, [scores], samples=100).variance

    assert variance(ScoreFunction(None, LeaveOneOut(), 4)) < variance(ScoreFunction(samples=4)) / 4


def test_leaving_one_out_needs_two_samples() -> None:
    with pytest.raises(ValueError, match="`samples` must be at least 2, got 1"):
        ScoreFunction(baseline=LeaveOneOut())
    estimator = ScoreFunction(baseline=LeaveOneOut(), samples=2)
    scores = torch.zeros(3, requires_grad=True)
    value = marginalize(scores, lambda item, z: torch.full((len(z),), 7.0), estimator).value
    value.backward()
    assert scores.grad is not None
    assert scores.grad.abs().max() < 1e-6
