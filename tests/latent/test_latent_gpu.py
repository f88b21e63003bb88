"""Latent variables with scores on a GPU: as on the CPU."""

from __future__ import annotations

import pytest
import torch
from enumerable import Categories, Configurations, gradients

import fenchel
from fenchel.latent import estimators, log_likelihood, marginalize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BITS = fenchel.Bits(3)
EXACT = [
    (Categories, fenchel.Sparsemax()),
    (Categories, fenchel.Softmax()),
    (Categories, estimators.TopK(k=1)),
    (Configurations, BITS),
    (Configurations, fenchel.Budget(3, 1)),
    (Configurations, estimators.TopK(BITS, k=2)),
]
SAMPLED = [
    (kind, make(over))
    for kind, over in ((Categories, None), (Configurations, BITS))
    for make in (
        estimators.ScoreFunction,
        lambda over: estimators.ScoreFunction(over, estimators.MovingAverage()),
        lambda over: estimators.ScoreFunction(over, estimators.SelfCritic()),
        estimators.GumbelSoftmax,
        estimators.StraightThrough,
    )
] + [(Categories, estimators.SumAndSample())]


def on_gpu(model: Categories | Configurations) -> Categories | Configurations:
    moved = (t.detach().cuda() for t in (model.scores, model.weight, model.x))
    scores, weight, x = moved
    return type(model)(scores.requires_grad_(), weight.requires_grad_(), x)


@pytest.mark.parametrize(("kind", "mapping"), EXACT)
def test_exact(kind: type[Categories] | type[Configurations], mapping: object) -> None:
    model = kind.random()
    moved = on_gpu(model)
    ground_truth = marginalize(model.scores, model.loss, mapping)  # type: ignore[arg-type]
    found = marginalize(moved.scores, moved.loss, mapping)  # type: ignore[arg-type]
    for name in ("value", "calls", "exact", "marginals", "entropy"):
        torch.testing.assert_close(getattr(found, name).cpu(), getattr(ground_truth, name))
    torch.testing.assert_close(found.kl().cpu(), ground_truth.kl())
    for ours, theirs in zip(
        gradients(found.value, moved.parameters),
        gradients(ground_truth.value, model.parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours.cpu(), theirs)
    likelihood = log_likelihood(moved.scores, lambda i, z: -moved.loss(i, z), mapping)  # type: ignore[arg-type]
    assert likelihood.value.is_cuda


@pytest.mark.parametrize(("kind", "estimator"), SAMPLED)
def test_sampled(
    kind: type[Categories] | type[Configurations], estimator: estimators.AbstractEstimator
) -> None:
    model = on_gpu(kind.random())
    estimator.cuda()
    outcome = marginalize(model.scores, model.loss, estimator)
    found = gradients(outcome.value, model.parameters)
    assert all(gradient.is_cuda and gradient.isfinite().all() for gradient in found)
    chosen = marginalize(model.scores, model.loss, estimator.eval()).value
    assert chosen.is_cuda
    assert chosen.isfinite().all()


STRUCTURES = [
    fenchel.Choice(3),
    fenchel.Sequence(3, 2),
    fenchel.DependencyTree(3),
    fenchel.Budget(3, 2),
    fenchel.Matching(2, 3),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_structures(structure: fenchel.structures.AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, device="cuda", requires_grad=True)
    kinds = [estimators.ScoreFunction, estimators.GumbelSoftmax, estimators.StraightThrough]
    kinds += [estimators.Spigot]
    if not isinstance(structure, fenchel.Matching):
        kinds.append(estimators.SumAndSample)

    def loss(item: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return z.float().reshape(len(z), -1).square().sum(1)

    for kind in kinds:
        outcome = marginalize(scores, loss, kind(structure))
        (outcome.value + outcome.kl()).sum().backward()
        assert outcome.value.is_cuda
        likelihood = log_likelihood(scores, loss, kind(structure), samples=10)
        assert likelihood.value.is_cuda
