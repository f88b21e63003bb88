"""The loss of perturbed optimizers: its value, and its gradient by the same noise."""

from __future__ import annotations

import pytest
import torch
from perturbed import best, points, seeded
from torch import Tensor

from conftest import identify
from fenchel import (
    FactorGraph,
    Matching,
    Sequence,
    StructuredLoss,
    map_inference,
    structured_loss,
    structures,
)
from fenchel.structures import AbstractStructure, Perturbed, Xor

every = pytest.mark.parametrize("structure", structures.examples(), ids=identify)


@every
def test_the_loss_and_its_gradient(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64).requires_grad_()
    perturbed = seeded(structure, sigma=0.5, samples=9)
    target = map_inference(
        structure, torch.randn(3, *structure.shape, dtype=torch.float64)
    ).indicator

    def loss(scores: Tensor) -> Tensor:
        points(perturbed, scores.detach())
        return structured_loss(perturbed, scores, target, reduction="none")

    assert torch.autograd.gradcheck(loss, [scores])
    (gradient,) = torch.autograd.grad(loss(scores).sum(), scores)
    points(perturbed, scores.detach())
    torch.testing.assert_close(gradient, perturbed(scores.detach()) - target)
    _, value = best(structure, points(perturbed, scores.detach()))
    at_target = (scores * target).flatten(1).sum(1)
    torch.testing.assert_close(loss(scores), value.mean(0) - at_target)
    module = StructuredLoss(perturbed, reduction="none")
    assert module.kind == "perturbed"
    points(perturbed, scores.detach())
    torch.testing.assert_close(module(scores, target), loss(scores))


def test_the_loss_takes_codes_lengths_and_extra_scores() -> None:
    structure = Sequence(4, 3)
    scores, transitions = torch.randn(2, 4, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    codes = torch.tensor([[0, 1, 2, 0], [1, 1, -1, -1]])
    perturbed = seeded(structure, samples=200)
    loss = structured_loss(perturbed, scores, codes, transitions, lengths=[4, 2])
    found = torch.autograd.grad(loss, [scores, transitions])
    assert perturbed.generator is not None
    perturbed.generator.manual_seed(0)
    u, v = perturbed(scores, transitions, lengths=[4, 2])
    torch.testing.assert_close(found[0], (u - structure.indicator(codes, u.dtype)) / 2)
    uses = structure.extra_indicator(codes, transitions[None])
    torch.testing.assert_close(found[1], (v - uses).mean(0))


def test_training_with_the_loss_finds_a_matching() -> None:
    target = torch.eye(4)[torch.randperm(4)]
    scores = torch.zeros(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([scores], lr=1.0)
    perturbed = Perturbed(Matching(4, 4), samples=10)
    for _ in range(50):
        optimizer.zero_grad()
        structured_loss(perturbed, scores, target).backward()
        optimizer.step()
    assert map_inference(Matching(4, 4), scores).indicator.equal(target)


def test_the_loss_of_a_graph() -> None:
    graph = FactorGraph((2, 3))
    graph.add(Xor(), graph.variables)
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()
    scores = torch.randn(2, 3).double().requires_grad_()
    perturbed = seeded(graph, samples=40, noise="gumbel")
    loss = structured_loss(perturbed, scores, target)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert perturbed.generator is not None
    perturbed.generator.manual_seed(0)
    torch.testing.assert_close(gradient, perturbed(scores).detach() - target)
