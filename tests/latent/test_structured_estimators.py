"""Estimators over structures: their distributions, and what they do with bad or empty input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from members import CUSTOM, TRACTABLE, TWO_MEMBERS, Members
from torch import Tensor

import fenchel
from conftest import identify
from fenchel import Bits, Budget, Choice, FactorGraph, Matching, Sequence
from fenchel.latent import estimators, gradient_variance, log_likelihood, marginalize
from fenchel.latent.estimators import (
    Exact,
    GumbelSoftmax,
    MovingAverage,
    ScoreFunction,
    Spigot,
    StraightThrough,
    SumAndSample,
    TopK,
)
from fenchel.structures import AbstractStructure, Perturbed, entropy, kl

ANY = [*TRACTABLE, *TWO_MEMBERS, Matching(2, 3)]
tractable = pytest.mark.parametrize("structure", TRACTABLE, ids=identify)
of_two = pytest.mark.parametrize("structure", TWO_MEMBERS, ids=identify)
every = pytest.mark.parametrize("structure", ANY, ids=identify)


@tractable
def test_probabilities_sum_to_one(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    distribution = ScoreFunction(structure).distribution(model.scores[None])
    log_p = distribution.log_prob(torch.zeros(len(model.members)).long(), model.members)
    torch.testing.assert_close(log_p, model.totals().log_softmax(0))
    top, exists = distribution.k_best(len(model.members) + 1)  # type: ignore[attr-defined]
    assert exists.sum() == len(model.members)
    torch.testing.assert_close(
        distribution.log_prob(torch.zeros(len(model.members)).long(), top[exists]),
        model.totals().log_softmax(0).sort(descending=True).values,
    )


@tractable
def test_summing_all_is_exact(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    for more in (0, 1):
        estimator = SumAndSample(structure, k=len(model.members) + more)
        outcome = marginalize(model.scores, model.loss, estimator)
        assert outcome.exact
        assert outcome.calls == len(model.members)
        torch.testing.assert_close(outcome.value, (model.totals().softmax(0) * model.table()).sum())
    fewer = SumAndSample(structure, k=len(model.members) - 1)
    assert not marginalize(model.scores, model.loss, fewer).exact


def test_summing_more_lowers_the_variance() -> None:
    model = Members.of(Sequence(3, 2))
    single, one, most = (
        gradient_variance(
            lambda estimator=estimator: marginalize(model.scores, model.loss, estimator).value,
            [model.scores],
            samples=200,
        ).variance
        for estimator in (
            ScoreFunction(model.structure),
            SumAndSample(model.structure),
            SumAndSample(model.structure, k=7),
        )
    )
    assert most < one < single


@tractable
def test_marginals_entropy_and_divergence(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    prior = torch.randn(structure.shape).double()
    outcome = marginalize(model.scores, model.loss, ScoreFunction(structure))
    torch.testing.assert_close(outcome.marginals, fenchel.marginals(structure, model.scores))
    torch.testing.assert_close(outcome.entropy, entropy(structure, model.scores))
    torch.testing.assert_close(outcome.kl(prior), kl(structure, model.scores, prior))


@of_two
def test_the_divergence_of_perturbed_scores_is_a_bound(structure: AbstractStructure) -> None:
    model, sigma = Members.of(structure), 0.8
    estimator = ScoreFunction(Perturbed(structure, sigma, samples=20_000))
    outcome = marginalize(model.scores, model.loss, estimator)
    prior = torch.randn(structure.shape).double()
    p, q = model.perturbed(sigma), model.perturbed(sigma, prior)
    exact_kl = (p * (p / q).log()).sum()
    bound = (model.scores - prior).square().sum() / (2 * sigma**2)
    torch.testing.assert_close(outcome.kl(prior), bound)
    assert bound > exact_kl
    torch.testing.assert_close(outcome.kl(), model.scores.square().sum() / (2 * sigma**2))
    wanted = (p.reshape(2, *[1] * len(structure.shape)) * model.members).sum(0)
    assert (outcome.marginals - wanted).abs().max() < 0.05
    with pytest.raises(NotImplementedError, match="entropy of perturb-and-MAP is intractable"):
        outcome.entropy  # noqa: B018
    with pytest.raises(ValueError, match="`structure` must be None where the posterior is"):
        outcome.kl(structure=Bits(3))


@every
def test_samples_belong_to_their_items(structure: AbstractStructure) -> None:
    scores = 1000 * torch.randn(2, 3, *structure.shape).double()
    best = fenchel.map_inference(structure, scores).indicator.flatten(0, 1)
    kinds: list[estimators.AbstractEstimator] = [
        ScoreFunction(structure, samples=4),
        ScoreFunction(Perturbed(structure), samples=4),
        GumbelSoftmax(structure, temperature=0.1, samples=4),
        StraightThrough(structure, samples=4),
        Spigot(structure),
    ]
    if structure in TRACTABLE:
        kinds.append(SumAndSample(structure))

    def distance(item: Tensor, z: Tensor) -> Tensor:
        return (z - best[item]).flatten(1).square().sum(1)

    for estimator in kinds:
        assert marginalize(scores, distance, estimator).value.abs().max() < 1e-6
        likelihood = log_likelihood(scores, lambda i, z: -1e6 * distance(i, z), estimator)
        assert likelihood.value.shape == (2, 3)
        assert likelihood.value.isfinite().all()


@every
def test_evaluation_takes_the_best(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    best = model.members[model.totals().argmax()].unsqueeze(0)
    for kind in (ScoreFunction, GumbelSoftmax, StraightThrough, Spigot):
        outcome = marginalize(model.scores, model.loss, kind(structure).eval())
        torch.testing.assert_close(outcome.value, model.loss(torch.zeros(1).long(), best)[0])


@pytest.mark.parametrize("structure", [Choice(3), Bits(3), Budget(3, 2)], ids=identify)
def test_nothing_is_drawn_behind_the_end(structure: AbstractStructure) -> None:
    scores = torch.randn(50, 3)
    kinds = (ScoreFunction, SumAndSample, GumbelSoftmax, StraightThrough, Spigot)
    for estimator in (kind(structure) for kind in kinds):

        def loss(item: Tensor, z: Tensor) -> Tensor:
            assert (z[:, 1:] == 0).all() if z.ndim == 2 else (z == 0).all()
            return z.double().reshape(len(z), -1).sum(1)

        outcome = marginalize(scores, loss, estimator, lengths=torch.ones(50).long())
        assert outcome.kl().isfinite().all()


def test_exact_takes_extra_scores_and_lengths() -> None:
    structure = Sequence(3, 2)
    scores, transitions = torch.randn(2, 3, 2), torch.randn(2, 2)
    mask = torch.tensor([[True, True, True], [True, True, False]])

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return z[:, 0, 0]

    found = marginalize(scores, loss, structure, extra_scores=transitions, mask=mask)
    posterior = fenchel.sparsemap(structure, scores, transitions, mask=mask)
    torch.testing.assert_close(found.value, marginalize(posterior, loss).value)
    with pytest.raises(TypeError, match="`mask` must be None where a `Posterior` is given; give"):
        marginalize(posterior, loss, mask=mask)


def test_the_gradients_of_rivals_can_be_compared() -> None:
    """One call for each, on the same latent matching."""
    model = Members.of(Matching(2, 3))
    for estimator in (
        Matching(2, 3),
        ScoreFunction(Matching(2, 3), MovingAverage()),
        GumbelSoftmax(Matching(2, 3)),
        StraightThrough(Perturbed(Matching(2, 3), sigma=0.5)),
        Spigot(Matching(2, 3)),
    ):
        outcome = marginalize(model.scores, model.loss, estimator)
        assert torch.autograd.grad(outcome.value, model.scores)[0].isfinite().all()


@pytest.mark.parametrize("structure", [Sequence(4, 3), Matching(4, 3)], ids=identify)
def test_nan_and_no_structure_stay_in_their_items(structure: AbstractStructure) -> None:
    scores = torch.randn(3, 4, 3)
    scores[0], scores[2] = torch.nan, -torch.inf
    scores.requires_grad_()
    kinds = [ScoreFunction, GumbelSoftmax, StraightThrough, Spigot]
    if isinstance(structure, Sequence):
        kinds.append(SumAndSample)
    for kind in kinds:
        outcome = marginalize(scores, lambda i, z: z.square().sum((1, 2)), kind(structure))
        assert outcome.value[0].isnan()
        assert outcome.value[1].isfinite()
        assert outcome.value[2] == 0
        (gradient,) = torch.autograd.grad(outcome.value[1:].sum(), scores)
        assert gradient[1:].isfinite().all()
        assert outcome.kl()[0].isnan()
        assert outcome.kl()[1:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    for structure in ANY:
        scores = torch.randn(2, 2, *structure.shape, dtype=dtype, requires_grad=True)
        kinds = [ScoreFunction, GumbelSoftmax, StraightThrough, Spigot]
        if structure in TRACTABLE:
            kinds.append(SumAndSample)
        for kind in kinds:
            outcome = marginalize(scores, lambda i, z: z.flatten(1).sum(1), kind(structure))
            assert outcome.value.dtype == torch.float32
            assert outcome.kl().dtype == outcome.marginals.dtype == dtype
            outcome.value.sum().backward()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: SumAndSample(Perturbed(Bits(2))), TypeError, "of known probabilities, such as"),
        (lambda: SumAndSample(CUSTOM), TypeError, "got Custom. `ScoreFunction` needs samples"),
        (lambda: ScoreFunction(FactorGraph((2,))), TypeError, "FactorGraph has marginals alone"),
        (lambda: Exact(FactorGraph((2,))), TypeError, "FactorGraph has marginals alone"),
        (lambda: Spigot(Perturbed(FactorGraph((2,)))), TypeError, "has marginals alone"),
        (lambda: Exact(Perturbed(Bits(2))), TypeError, "`over` must be a mapping, such as"),  # type: ignore[arg-type]
        (lambda: Spigot(Bits(2), step=0), ValueError, "`step` must be greater than 0, got 0"),
        (
            lambda: marginalize(torch.zeros(2, 2), lambda i, z: z, lengths=[1, 2]),
            ValueError,
            "`lengths` must be None for Sparsemax, got list; a score of −inf excludes",
        ),
        (
            lambda: marginalize(
                torch.zeros(2, 2), lambda i, z: z, TopK(Bits(2)), extra_scores=torch.zeros(2)
            ),
            ValueError,
            "`extra_scores` must be None for TopK, got Tensor",
        ),
        (
            lambda: marginalize(
                torch.zeros(2, 2), lambda i, z: z, ScoreFunction(), mask=torch.ones(2, 2).bool()
            ),
            ValueError,
            "`mask` must be None for Softmax",
        ),
    ],
)
def test_bad_input(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
