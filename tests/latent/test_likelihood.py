"""The log-likelihood: its exact part, and that the whole converges to the exact value."""

from __future__ import annotations

import pytest
import torch
from enumerable import Categories, Configurations
from torch import Tensor

import fenchel
from fenchel.latent import LogLikelihood, estimators, log_likelihood, marginalize
from fenchel.latent._marginalize import Estimator

MANY = 40_000
SIGMAS = 5.0


def density(model: Categories | Configurations):
    def log_density(item: Tensor, z: Tensor) -> Tensor:
        return -model.loss(item, z)

    return log_density


def assert_likelihood(found: LogLikelihood, joint: Tensor, draws: Tensor, weights: Tensor) -> None:
    """The value is that of log p(x, z) (B, K), within a few standard errors of the mean of MANY
    weights (B, K), drawn with the probabilities `draws`."""
    ground_truth = joint.exp().sum(-1)
    variance = (draws * weights.square()).sum(-1) - (draws * weights).sum(-1).square()
    error = (variance.clamp(min=0) / MANY).sqrt() + 1e-12
    assert ((found.value.exp() - ground_truth).abs() <= SIGMAS * error).all()


@pytest.mark.parametrize(
    "estimator",
    [
        fenchel.Sparsemax(),
        fenchel.Entmax(1.5),
        estimators.TopK(k=2),
        estimators.ScoreFunction(),
        estimators.GumbelSoftmax(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_categories(estimator: Estimator) -> None:
    model = Categories.random(scale=1.5)
    prior = torch.randn(5).double()
    joint = (prior.log_softmax(-1) - model.table()).detach()
    found = log_likelihood(model.scores, density(model), estimator, prior=prior, samples=MANY)
    outcome = marginalize(model.scores, lambda i, z: z.new_zeros(len(z)).double(), estimator)
    q = outcome.marginals.detach()
    if isinstance(estimator, estimators.AbstractEstimator) and not outcome.exact.all():
        assert_likelihood(found, joint, q, joint.exp() / q)
    else:
        rest = torch.where(q > 0, 0.0, (-model.table().detach()).exp())
        assert_likelihood(found, joint, prior.softmax(-1).expand_as(q), rest)
        inside = torch.where(q > 0, joint, -torch.inf).logsumexp(-1)
        torch.testing.assert_close(found.support, inside)
    assert not found.value.requires_grad


@pytest.mark.parametrize("structure", [fenchel.Bits(3), fenchel.Budget(3, 2)], ids=str)
def test_the_support_of_bits_is_exact_and_the_rest_converges(structure: fenchel.Bits) -> None:
    model = Configurations.random()
    prior = torch.randn(3).double()
    every = model.all_configurations()
    log_prior = torch.where(every > 0, prior.sigmoid(), (-prior).sigmoid()).log().sum(-1)
    joint = (log_prior - model.table()).detach()
    posterior = fenchel.sparsemap(structure, model.scores)
    codes, weights = posterior.codes.double(), posterior.weights
    live = (codes.unsqueeze(2) == every).all(-1) & (weights > 0).unsqueeze(-1)
    inside = live.any(1)
    found = log_likelihood(
        model.scores, density(model), structure, prior=prior, samples=MANY, chunk=10_000
    )
    support = torch.where(inside, joint, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(found.support, support)
    rest = torch.where(inside, 0.0, (-model.table().detach()).exp())
    assert_likelihood(found, joint, log_prior.exp().expand_as(rest), rest)
    again = log_likelihood(posterior, density(model), prior=prior, samples=10)
    torch.testing.assert_close(again.support, support)


def test_a_choice_is_a_categorical_variable() -> None:
    model = Categories.random()
    found = log_likelihood(model.scores, density(model), fenchel.Choice(5))
    ground_truth = log_likelihood(model.scores, density(model), fenchel.Sparsemax())
    torch.testing.assert_close(found.support, ground_truth.support)


def test_nothing_is_counted_twice() -> None:
    """If the support is everything, samples add nothing."""
    model = Categories.random(scale=0.01)
    found = log_likelihood(model.scores, density(model), samples=100)
    assert (found.complement == -torch.inf).all()
    ground_truth = (-model.table()).logsumexp(-1) - torch.tensor(5.0).log()
    torch.testing.assert_close(found.value, ground_truth.detach())


def test_importance_samples_of_bits_converge() -> None:
    model = Configurations.random()
    joint = (-model.table() - 3 * torch.tensor(2.0).log()).detach()
    q = model.probabilities().detach()
    estimator = estimators.ScoreFunction(fenchel.Bits(3))
    found = log_likelihood(model.scores, density(model), estimator, samples=MANY)
    assert_likelihood(found, joint, q, joint.exp() / q)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="`samples` must be at least 1, got 0"):
        log_likelihood(torch.zeros(2, 2), lambda i, z: z.float(), samples=0)
    with pytest.raises(ValueError, match="`log_density` must return one value per pair"):
        log_likelihood(torch.zeros(2, 2), lambda i, z: torch.zeros(()))
