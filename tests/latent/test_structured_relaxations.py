"""Relaxed samples of structures, straight-through and SPIGOT: biased, but with right gradients."""

from __future__ import annotations

import pytest
import torch
from members import CUSTOM, Members, assert_mean
from torch import Tensor

import fenchel
from conftest import identify
from fenchel import Bits, Budget, DependencyTree, Matching, Sequence
from fenchel.latent import marginalize
from fenchel.latent.estimators import GumbelSoftmax, Spigot, StraightThrough
from fenchel.structures import AbstractStructure, Perturbed

MANY = 20_000
STRUCTURES = [
    Sequence(3, 2),
    DependencyTree(3),
    DependencyTree(4, projective=True),
    Budget(4, 2),
    Bits(3),
    Matching(2, 3),
    CUSTOM,
]
every = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)


@every
def test_relaxed_samples_are_in_the_polytope(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    scores, _ = model.copies(200)
    flat = model.members.flatten(1)
    for kind, temperature in ((GumbelSoftmax, 1.0), (GumbelSoftmax, 1e-3), (StraightThrough, 1.0)):
        seen: list[Tensor] = []

        def loss(item: Tensor, z: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(z)
            return model.loss(item, z)

        value = marginalize(scores, loss, kind(structure, temperature)).value
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        assert gradient.isfinite().all()
        z = seen[0].detach().flatten(1)
        direction = torch.randn(20, z.shape[1]).double()
        limit = (direction @ flat.T).amax(1)
        assert (z @ direction.T <= limit + 1e-6).all()
        near = torch.cdist(z, flat).amin(1)
        if kind is StraightThrough:
            assert (near == 0).all()
        elif temperature < 1:
            assert near.median() < 1e-6


@pytest.mark.parametrize("structure", [Sequence(3, 2), Matching(2, 3), CUSTOM], ids=identify)
def test_relaxed_gradients_by_differences(structure: AbstractStructure) -> None:
    model = Members.of(structure)
    estimator = GumbelSoftmax(structure, temperature=2.0, samples=3)

    def value(scores: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(1)
        model.weight = weight
        return marginalize(scores, model.loss, estimator).value

    assert torch.autograd.gradcheck(value, [model.scores, model.weight], atol=1e-4)


def test_relaxed_samples_follow_extra_scores() -> None:
    structure = Sequence(3, 2)
    scores, transitions = torch.randn(4, 3, 2).double(), torch.randn(2, 2).double()
    transitions.requires_grad_()

    def value(transitions: Tensor) -> Tensor:
        torch.manual_seed(2)
        estimator = GumbelSoftmax(structure, temperature=0.9)
        weight = torch.arange(6.0).reshape(3, 2).double()
        return marginalize(
            scores,
            lambda item, z: (z * weight).sum((1, 2)).square(),
            estimator,
            extra_scores=transitions,
            lengths=[3, 2, 1, 3],
        ).value

    assert torch.autograd.gradcheck(value, [transitions])


@every
def test_straight_through_has_the_gradient_of_the_soft_sample(
    structure: AbstractStructure,
) -> None:
    model = Members.of(structure)
    scores, _ = model.copies(5)
    direction = torch.randn(structure.shape).double()
    found = []
    for kind in (GumbelSoftmax, StraightThrough):
        torch.manual_seed(3)
        value = marginalize(
            scores, lambda i, z: (z * direction).flatten(1).sum(1), kind(structure, 0.8)
        ).value
        found.append(torch.autograd.grad(value.sum(), scores)[0])
    torch.testing.assert_close(found[0], found[1])


def test_straight_through_samples_are_perturb_and_map() -> None:
    model = Members.of(Matching(2, 2))
    scores, _ = model.copies(MANY)
    seen: list[Tensor] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        seen.append(z.detach())
        return z.flatten(1).sum(1)

    marginalize(scores, loss, StraightThrough(Perturbed(Matching(2, 2), 0.5)))
    p = model.perturbed(0.5).detach()
    assert_mean(seen[0], (p.reshape(2, 1, 1) * model.members).sum(0))


@every
@pytest.mark.parametrize("step", [1.0, 0.1])
def test_spigot_projects(structure: AbstractStructure, step: float) -> None:
    model = Members.of(structure)
    best = model.members[model.totals().argmax()]
    z = best.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(torch.zeros(1).long(), z[None]).sum(), z)
    projection = fenchel.sparsemap(structure, best - step * gradient).marginals
    outcome = marginalize(model.scores, model.loss, Spigot(structure, step=step))
    (found,) = torch.autograd.grad(outcome.value, model.scores)
    torch.testing.assert_close(found, best - projection, atol=1e-5, rtol=0)
    assert outcome.calls == 1
    assert not outcome.exact


def test_spigot_of_categories_projects_onto_the_simplex() -> None:
    scores, weight = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    outcome = marginalize(scores, lambda item, z: z @ weight, Spigot(step=0.5))
    best = torch.nn.functional.one_hot(scores.argmax(-1), 5).float()
    torch.testing.assert_close(outcome.value, best @ weight)
    (found,) = torch.autograd.grad(outcome.value.sum(), scores)
    torch.testing.assert_close(found, best - fenchel.sparsemax(best - 0.5 * weight))
    assert outcome.entropy.shape == (3,)


def test_spigot_with_lengths_and_forbidden_parts() -> None:
    scores = torch.randn(2, 3, 2).requires_grad_()
    with torch.no_grad():
        scores[0, 1, 0] = -torch.inf
    weight = torch.randn(3, 2)
    value = marginalize(
        scores,
        lambda item, z: (z * weight).sum((1, 2)),
        Spigot(Sequence(3, 2)),
        extra_scores=torch.randn(2, 2),
        lengths=[3, 2],
    ).value
    (found,) = torch.autograd.grad(value.sum(), scores)
    assert found[0, 1].tolist() == [0.0, 0.0]
    assert found[1, 2].tolist() == [0.0, 0.0]
    assert (found != 0).any()


def test_spigot_says_that_torch_func_has_no_rule() -> None:
    def value(scores: Tensor) -> Tensor:
        return marginalize(scores, lambda item, z: z[:, 0], Spigot()).value.sum()

    for call in (
        lambda: torch.func.grad(value)(torch.randn(2, 3)),
        lambda: torch.func.jvp(value, (torch.randn(2, 3),), (torch.randn(2, 3),)),
    ):
        with pytest.raises(NotImplementedError, match=r"Spigot has no rule for torch\.func"):
            call()
