"""What the messages recommend can be done; and expectations of no items at all."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import Bits, Budget, Custom, FactorGraph, Sequence, sparsemap, structures
from fenchel.latent import History, estimators, k_best, log_likelihood, marginalize
from fenchel.latent.estimators import (
    Exact,
    GumbelSoftmax,
    Learned,
    MovingAverage,
    ScoreFunction,
    SelfCritic,
    Spigot,
    StraightThrough,
    SumAndSample,
    TopK,
)

TAKE_ANY = (ScoreFunction, GumbelSoftmax, StraightThrough, Spigot)
"""Those that need no more of a structure than its best member."""


def loss(item: Tensor, z: Tensor) -> Tensor:
    return z.double().flatten(1).sum(1) if z.ndim > 1 else z.double()


@pytest.mark.parametrize("estimator", [Exact, TopK, SumAndSample, *TAKE_ANY])
@pytest.mark.parametrize("over", [1.5, FactorGraph((2, 2)), Custom((2,), torch.sign)])
def test_what_an_estimator_recommends_it_takes(estimator: type, over: object) -> None:
    if isinstance(over, Custom) and estimator in (Exact, *TAKE_ANY):
        return
    with pytest.raises(TypeError, match="must be") as caught:
        estimator(over)
    recommended = re.findall(r"`(fenchel\.[^`]*)`", str(caught.value))
    assert recommended
    for call in recommended:
        found = marginalize(torch.randn(2, 8), loss, estimator(eval(call, {"fenchel": fenchel})))
        assert found.value.shape == (2,)


def test_what_marginalize_recommends_it_takes() -> None:
    with pytest.raises(TypeError, match="`estimator` must be a mapping, a structure") as caught:
        marginalize(torch.randn(2, 8), loss, 1.5)  # type: ignore[arg-type]
    for call in re.findall(r"`(fenchel\.[^`]*)`", str(caught.value)):
        over = eval(call, {"fenchel": fenchel})
        assert marginalize(torch.randn(2, 8), loss, over).value.shape == (2,)


def test_a_prior_over_a_structure_of_another_shape() -> None:
    found = marginalize(torch.randn(3, 2, 2), loss, Sequence(2, 2))
    with pytest.raises(ValueError, match=r"`structure` must have scores of shape \(2, 2\), got"):
        found.kl(structure=Bits(2))


@pytest.mark.parametrize("batch", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("structure", [*structures.examples(), None])
def test_no_items(structure: structures.AbstractStructure | None, batch: tuple[int, ...]) -> None:
    shape = (4,) if structure is None else structure.shape
    scores = torch.randn(*batch, *shape, requires_grad=True)
    found = [marginalize(scores, loss, structure)]
    if structure is not None:
        found.append(marginalize(sparsemap(structure, scores), loss))
    for outcome in found:
        assert outcome.value.shape == outcome.calls.shape == outcome.entropy.shape == batch
        assert outcome.marginals.shape == scores.shape
        outcome.value.sum().backward()
    assert log_likelihood(scores, loss, structure, samples=3).value.shape == batch
    history = History()
    history.add(found[0])
    with pytest.raises(ValueError, match="an epoch must have at least one batch with items"):
        history.close()


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "over", [None, fenchel.Sparsemax(), Bits(4), Budget(4, 2), Custom((4,), torch.sign)]
)
def test_estimates_of_no_items(
    over: fenchel.Sparsemax | structures.AbstractStructure | None,
    training: bool,
    batch: tuple[int, ...],
) -> None:
    scores = torch.randn(*batch, 4, requires_grad=True)
    context = torch.randn(*batch, 3)
    every: list[estimators.AbstractEstimator] = [
        Exact(over),
        GumbelSoftmax(over, samples=2),
        StraightThrough(over),
        Spigot(over),
        ScoreFunction(over, MovingAverage()),
        ScoreFunction(over, SelfCritic()),
        ScoreFunction(over, Learned(torch.nn.Linear(3, 1))),
    ]
    if not isinstance(over, Budget | Custom):
        every.append(TopK(over, k=2))  # type: ignore[arg-type]
    if not isinstance(over, Custom):
        every.append(SumAndSample(over))
    for estimator in every:
        for chunk in (None, 2):
            found = marginalize(
                scores, loss, estimator.train(training), context=context, chunk=chunk
            )
            assert found.value.shape == batch
            if not isinstance(over, Custom) or not isinstance(estimator, Exact):
                assert found.kl().shape == batch
    assert k_best(scores, 3).shape == (*batch, 3, 4)
