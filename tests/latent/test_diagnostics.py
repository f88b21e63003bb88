"""Calls per item over training, and the variance of gradients."""

from __future__ import annotations

import pytest
import torch
from enumerable import Categories
from torch import Tensor

from fenchel.latent import History, estimators, gradient_variance, marginalize


def test_percentiles_of_the_calls_of_each_epoch() -> None:
    history = History()
    scores = torch.full((10, 12), -9.0)
    for row in range(10):
        scores[row, : row + 1] = 0.0
    history.add(marginalize(scores[:4], lambda i, z: z.float()))
    history.add(marginalize(scores[4:], lambda i, z: z.float()))
    row = history.close()
    calls = torch.arange(1, 11).double()
    assert row["median"] == 5.5
    assert row["p10"] == pytest.approx(calls.quantile(0.1).item())
    assert row["p90"] == pytest.approx(calls.quantile(0.9).item())
    assert (row["mean"], row["exact"], row["items"]) == (5.5, 1.0, 10)
    history.add(marginalize(scores, lambda i, z: z.float(), estimators.ScoreFunction()))
    assert history.close()["exact"] == 0.0
    assert [row["median"] for row in history.rows] == [5.5, 1.0]
    with pytest.raises(ValueError, match="an epoch must have at least one batch"):
        history.close()


def test_gradient_variance_against_the_samples_themselves() -> None:
    model = Categories.random()
    other = torch.zeros(2, requires_grad=True)

    def loss() -> Tensor:
        return marginalize(model.scores, model.loss, estimators.ScoreFunction()).value.sum()

    torch.manual_seed(5)
    samples = torch.stack([torch.autograd.grad(loss(), model.scores)[0] for _ in range(50)])
    torch.manual_seed(5)
    found = gradient_variance(loss, [model.scores, other], samples=50)
    torch.testing.assert_close(found.mean[0], samples.mean(0))
    assert found.mean[1].tolist() == [0.0, 0.0]
    assert found.variance == pytest.approx(samples.var(0).sum().item())
    assert model.scores.grad is None
    with pytest.raises(ValueError, match="`samples` must be at least 2, got 1"):
        gradient_variance(loss, [model.scores], samples=1)
