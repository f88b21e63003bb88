"""The divergence from a prior: over other sets, over matchings, and for large scores."""

from __future__ import annotations

import math

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
