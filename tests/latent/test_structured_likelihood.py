"""The log-likelihood over structures: exact on the support, and converging to all members."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from members import CUSTOM, SIGMAS, Members
from torch import Tensor

import fenchel
from conftest import identify
from fenchel import Bits, Budget, DependencyTree, Matching, Sequence
from fenchel.latent import LogLikelihood, estimators, log_likelihood
from fenchel.latent.estimators import Exact, GumbelSoftmax, ScoreFunction, Spigot, StraightThrough
from fenchel.structures import AbstractStructure, Perturbed

MANY = 20_000
TRACTABLE = [Sequence(3, 2), DependencyTree(3), DependencyTree(4, projective=True), Bits(3)]
MATCHINGS = [Matching(2, 3), Matching(3, 3), Matching(3, 2)]


def density(model: Members):
    def log_density(item: Tensor, z: Tensor) -> Tensor:
        return -model.loss(item, z)

    return log_density


def check(
    found: LogLikelihood, joint: Tensor, q: Tensor | None = None, p: Tensor | None = None
) -> None:
    """The value is log Σ exp(joint) over members (K), within a few standard errors of samples from
    q (K), or from the prior p (K) outside of the support: at most the second moment of all."""
    joint, ground_truth = joint.detach(), joint.exp().sum().detach()
    draws = p if q is None else q
    assert draws is not None
    second = (joint.exp().square() / draws).sum()
    variance = second if q is None else second - ground_truth.square()
    error = SIGMAS * (variance / MANY).sqrt() + 1e-9
    assert ((found.value.exp() - ground_truth).abs() <= error).all()


@pytest.mark.parametrize("structure", TRACTABLE, ids=identify)
@pytest.mark.parametrize("kind", [Exact, ScoreFunction, GumbelSoftmax, Spigot])
def test_gibbs_priors(
    structure: AbstractStructure, kind: type[estimators.AbstractEstimator]
) -> None:
    model = Members.of(structure)
    for prior in (None, torch.randn(structure.shape).double()):
        theta = torch.zeros(structure.shape).double() if prior is None else prior
        p = model.totals(theta).softmax(0).detach()
        joint = p.log() - model.table()
        found = log_likelihood(
            model.scores, density(model), kind(structure), prior=prior, samples=MANY
        )
        q = model.totals().softmax(0).detach()
        samples_posterior = kind in (ScoreFunction, Spigot) or structure == Bits(3)
        check(found, joint, q if samples_posterior and kind is not Exact else None, p)
        if not (samples_posterior and kind is not Exact):
            assert found.support > -torch.inf
        assert not found.value.requires_grad


@pytest.mark.parametrize("structure", MATCHINGS, ids=identify)
def test_a_uniform_prior_of_matchings(structure: Matching) -> None:
    model = Members.of(structure)
    p = torch.full((len(model.members),), 1 / len(model.members)).double()
    joint = p.log() - model.table()
    posterior = fenchel.sparsemap(structure, model.scores.detach())
    chosen = structure.indicator(posterior.codes[posterior.weights > 0])
    support = (p[0].log() - model.loss(torch.zeros(len(chosen)).long(), chosen)).logsumexp(0)
    for estimator in (Exact(structure), ScoreFunction(structure), StraightThrough(structure)):
        found = log_likelihood(model.scores, density(model), estimator, samples=MANY)
        check(found, joint, None, p)
        if isinstance(estimator, Exact):
            torch.testing.assert_close(found.support, support.detach())
        else:  # with so many samples of the posterior, nothing is left
            torch.testing.assert_close(found.value, joint.logsumexp(0).detach())


def test_matchings_of_different_sizes() -> None:
    scores = torch.randn(2, 3, 3).double()
    lengths = torch.tensor([[3, 3], [2, 1]])

    def log_density(item: Tensor, z: Tensor) -> Tensor:
        return (z * scores[item]).sum((1, 2))

    found = log_likelihood(
        scores, log_density, ScoreFunction(Matching(3, 3)), lengths=lengths, samples=3000
    )
    whole = (fenchel.testing.enumerate_members(Matching(3, 3)) * scores[0]).sum((1, 2))
    wanted = torch.stack([whole.logsumexp(0) - torch.tensor(6.0).log(), whole[0]])
    wanted[1] = scores[1, :2, 0].logsumexp(0) - torch.tensor(2.0).log()
    torch.testing.assert_close(found.value, wanted)


@pytest.mark.parametrize("structure", [Matching(2, 2), CUSTOM], ids=identify)
@pytest.mark.parametrize("sigma", [None, 0.5])
def test_perturbed_priors(structure: AbstractStructure, sigma: float | None) -> None:
    """Of two members the probabilities under noise have a closed form."""
    model = Members.of(structure)
    prior = torch.randn(structure.shape).double() / 2
    estimator = Exact(structure) if sigma is None else ScoreFunction(Perturbed(structure, sigma))
    p = model.perturbed(1.0, prior).detach()  # whatever the noise of the posterior
    found = log_likelihood(model.scores, density(model), estimator, prior=prior, samples=MANY)
    check(found, p.log() - model.table(), None, p)
    assert found.support == -torch.inf


def test_a_sampled_budget_has_a_prior_of_its_own() -> None:
    structure = Budget(4, 2)
    model, prior = Members.of(structure), torch.randn(4).double()
    p, q = model.totals(prior).softmax(0).detach(), model.totals().softmax(0).detach()
    found = log_likelihood(
        model.scores, density(model), ScoreFunction(structure), prior=prior, samples=MANY
    )
    check(found, p.log() - model.table(), q)


def test_a_markov_prior_and_lengths() -> None:
    structure = Sequence(3, 2)
    scores, transitions = torch.randn(2, 3, 2).double(), torch.randn(2, 2).double()
    emissions = torch.randn(2, 3, 2).double()

    def log_density(item: Tensor, z: Tensor) -> Tensor:
        return (z * emissions[item]).sum((1, 2))

    lengths = torch.tensor([3, 2])
    zeros = torch.zeros(2, 3, 2).double()
    both = fenchel.log_partition(
        structure, emissions, transitions, lengths=lengths
    ) - fenchel.log_partition(structure, zeros, transitions, lengths=lengths)
    for kind in (Exact, ScoreFunction, GumbelSoftmax):
        found = log_likelihood(
            scores,
            log_density,
            kind(structure),
            extra_scores=transitions,
            lengths=lengths,
            prior_extra_scores=transitions,
            samples=MANY,
        )
        assert (found.value - both).abs().max() < 0.05


def test_extra_scores_of_a_posterior_are_given_before() -> None:
    structure = Sequence(3, 2)
    posterior = fenchel.sparsemap(structure, torch.randn(3, 2), torch.randn(2, 2))
    with pytest.raises(TypeError, match="`lengths` must be None where a `Posterior` is given"):
        log_likelihood(posterior, lambda i, z: z.sum((1, 2)), lengths=3)
    assert log_likelihood(posterior, lambda i, z: z.sum((1, 2))).value.isfinite()


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("structure", [Matching(2, 2), CUSTOM, Sequence(3, 2)], ids=identify)
def test_no_items(structure: AbstractStructure, batch: tuple[int, ...]) -> None:
    scores = torch.randn(*batch, *structure.shape).double()
    for kind in (ScoreFunction, GumbelSoftmax):
        for prior in (None, torch.zeros(structure.shape).double()):
            found = log_likelihood(
                scores, lambda i, z: z.flatten(1).sum(1), kind(structure), prior=prior, samples=3
            )
            assert found.value.shape == batch


def test_matchings_have_no_extra_scores() -> None:
    for prior in (None, torch.zeros(2, 2)):
        with pytest.raises(ValueError, match="`extra_scores` must be None for matching"):
            log_likelihood(
                torch.zeros(2, 2),
                lambda i, z: z.sum((1, 2)),
                ScoreFunction(Matching(2, 2)),
                prior=prior,
                prior_extra_scores="nonsense",  # type: ignore[arg-type]
            )


@pytest.mark.parametrize(
    "estimator",
    [
        ScoreFunction(),
        estimators.SumAndSample(),
        ScoreFunction(Sequence(2, 2)),
        ScoreFunction(DependencyTree(2)),
    ],
    ids=str,
)
def test_a_posterior_without_outcomes_leaves_all_to_the_prior(
    estimator: estimators.AbstractSampler,
) -> None:
    shape = getattr(estimator.over, "shape", (4,))
    scores = torch.zeros(2, *shape, dtype=torch.float64)
    scores[0] = -torch.inf

    def log_density(item: Tensor, z: Tensor) -> Tensor:
        return -z.reshape(len(z), -1).double().sum(1)

    found = log_likelihood(scores, log_density, estimator, samples=MANY)
    assert found.value[0].isclose(found.value[1], atol=SIGMAS * 0.01)


@pytest.mark.parametrize(
    "estimator",
    [
        None,
        ScoreFunction(),
        Budget(4, 2),
        ScoreFunction(Budget(4, 2)),
        ScoreFunction(Perturbed(Budget(4, 2))),
        estimators.TopK(Bits(4), k=3),
    ],
    ids=str,
)
def test_nan_stays_in_its_item(estimator: Any) -> None:
    scores = torch.zeros(2, 4)
    scores[0, 1] = torch.nan
    found = log_likelihood(scores, lambda i, z: -z.float().reshape(len(z), -1).sum(1), estimator)
    for part in found:
        assert part[0].isnan()
        assert not part[1].isnan()
