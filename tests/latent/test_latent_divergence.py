"""The divergence from a prior: over other sets, over matchings, and for large scores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import exact
from fenchel import Bits, Budget, Choice, DependencyTree, Matching, Sequence, Softmax, sparsemap
from fenchel.latent import marginalize
from fenchel.latent._divergence import contains
from fenchel.latent.estimators import ScoreFunction
from fenchel.structures import AbstractStructure, Perturbed

SETS = [
    Choice(3),
    Bits(3),
    Budget(3, 1),
    Budget(3, 1, exact=True),
    Budget(3, 2),
    Budget(3, 2, exact=True),
    Budget(3, 3),
]
SQUARES = [
    DependencyTree(3),
    DependencyTree(3, single_root=False),
    DependencyTree(3, projective=True),
    DependencyTree(3, projective=True, single_root=False),
    Sequence(3, 3),
    Matching(3, 3),
]


def loss(item: Tensor, z: Tensor) -> Tensor:
    return z.double().reshape(len(z), -1).sum(1)


@pytest.mark.parametrize("family", [SETS, SQUARES], ids=["sets", "squares"])
def test_which_sets_contain_which(family: list[AbstractStructure]) -> None:
    def members(structure: AbstractStructure) -> set[tuple[float, ...]]:
        return {tuple(row) for row in exact.members(structure).flatten(1).tolist()}

    for larger in family:
        for smaller in family:
            found = contains(larger, smaller)
            if found:
                assert members(smaller) <= members(larger)
            elif family is SETS or type(larger) is type(smaller):
                assert not members(smaller) <= members(larger)


def test_a_smaller_set_is_an_error() -> None:
    scores = torch.ones(5)
    for estimator in (ScoreFunction(Bits(5)), Bits(5)):
        outcome = marginalize(scores, loss, estimator)
        with pytest.raises(ValueError, match=r"`structure` must contain all .* Bits\(d=5\)"):
            outcome.kl(structure=Budget(5, 1))
    found = marginalize(scores, loss, ScoreFunction(Budget(5, 1))).kl(structure=Bits(5))
    assert found > 0


def test_a_name_is_no_structure() -> None:
    for over in (Bits(3), ScoreFunction(Bits(3)), ScoreFunction(Perturbed(Bits(3)))):
        with pytest.raises(TypeError, match=r"`structure` must be a structure, .* got str"):
            marginalize(torch.ones(3), loss, over).kl(structure="bits")  # type: ignore[arg-type]


def test_the_uniform_prior_over_matchings() -> None:
    scores = torch.randn(4, 2, 3).double().requires_grad_()
    outcome = marginalize(scores, loss, Matching(2, 3))
    torch.testing.assert_close(outcome.kl(), math.log(6) - outcome.entropy)
    outcome.kl().sum().backward()
    posterior = sparsemap(Matching(2, 3), scores, lengths=[[1, 1], [1, 3], [2, 2], [2, 3]])
    ragged = marginalize(posterior, loss)
    counts = torch.tensor([1.0, 3.0, 2.0, 6.0]).double()
    torch.testing.assert_close(ragged.kl(), counts.log() - ragged.entropy)
    with pytest.raises(NotImplementedError, match="the log-partition of a matching"):
        outcome.kl(torch.randn(2, 3).double())


@pytest.mark.parametrize(
    "estimator", [ScoreFunction(), Softmax(), ScoreFunction(Sequence(50, 20))], ids=str
)
def test_large_scores_in_single_precision(estimator: ScoreFunction | Softmax) -> None:
    scores = torch.randn(4, 50, 20) + 1e5
    found = marginalize(scores, loss, estimator).kl(scores)
    assert found.min() >= 0
    assert found.max() < 1e-3


FORBIDDEN = torch.tensor([0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
ESTIMATORS = [
    ScoreFunction(),
    Softmax(),
    Choice(4),
    Bits(4),
    *(ScoreFunction(s) for s in (Bits(4), Budget(4, 2), Sequence(2, 2), DependencyTree(2))),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_what_posterior_and_prior_exclude_has_no_gradient(estimator: Any) -> None:
    scores = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    shape = getattr(getattr(estimator, "over", estimator), "shape", (4,))

    def divergence(free: Tensor, low: float) -> Tensor:
        """With the parts at `low`, which for −700 has the value of −∞."""
        forbidden = FORBIDDEN.clamp(min=low).reshape(shape)
        return marginalize(free.reshape(shape) + forbidden, loss, estimator).kl(forbidden)

    found, truth = (
        torch.autograd.grad(divergence(x, low), x)[0]
        for low in (-math.inf, -700.0)
        for x in [scores.clone().requires_grad_()]
    )
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_prior_without_outcomes_is_infinitely_far(estimator: Any) -> None:
    shape = getattr(getattr(estimator, "over", estimator), "shape", (4,))
    prior = torch.full(shape, -math.inf)
    assert marginalize(torch.ones(shape), loss, estimator).kl(prior) == math.inf


@pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
@pytest.mark.parametrize("structure", [Choice(3), Bits(3), Budget(3, 2), Matching(1, 3)], ids=str)
def test_the_bound_with_excluded_parts(structure: AbstractStructure, noise: Any) -> None:
    scores = torch.tensor([0.5, -math.inf, 1.0], requires_grad=True)
    estimator = ScoreFunction(Perturbed(structure, noise=noise))
    outcome = marginalize(scores.reshape(structure.shape), loss, estimator)
    assert outcome.kl() == math.inf
    assert (
        outcome.kl(torch.tensor([-math.inf, -math.inf, 0.0]).reshape(structure.shape)) == math.inf
    )
    both = outcome.kl(torch.tensor([0.0, -math.inf, 0.0]).reshape(structure.shape))
    alone = torch.tensor([0.5, 1.0])
    wanted = alone.square() / 2 if noise == "gaussian" else alone + (-alone).exp() - 1
    torch.testing.assert_close(both, wanted.sum())
    (gradient,) = torch.autograd.grad(both, scores)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "structure", [Bits(3), Budget(3, 2), Budget(3, 2, exact=True), Matching(1, 3)], ids=str
)
def test_the_bound_where_all_is_excluded(structure: AbstractStructure) -> None:
    """An item without outcomes has none; to have no bits is an outcome."""
    scores = torch.full(structure.shape, -math.inf)
    found = marginalize(scores, loss, ScoreFunction(Perturbed(structure))).kl()
    has_outcome = structure.name == "bits" or structure == Budget(3, 2)
    assert found == (math.inf if has_outcome else 0.0)
