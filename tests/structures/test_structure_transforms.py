"""Inference over structures under torch.func, forward mode and torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from conftest import identify
from fenchel import Budget, DependencyTree, Sequence, log_partition, map_inference, marginals
from fenchel.structures import AbstractStructure

STRUCTURES = [
    DependencyTree(3),
    DependencyTree(3, projective=True),
    Sequence(3, 2),
    Budget(4, 2),
]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)


def slope(function, x: Tensor, direction: Tensor) -> Tensor:
    """The derivative in a direction, by finite differences."""
    return (function(x + 1e-6 * direction) - function(x - 1e-6 * direction)) / 2e-6


@each
def test_forward_mode(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    direction = torch.randn_like(scores)
    for function in (log_partition, marginals, lambda s, x: map_inference(s, x).value):

        def solve(x: Tensor, f=function) -> Tensor:
            return f(structure, x)

        expected = slope(solve, scores, direction)
        found = jvp(solve, (scores,), (direction,))[1]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        with forward_ad.dual_level():
            dual = solve(forward_ad.make_dual(scores, direction))
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, found)


@each
def test_jacobians_and_hessians(structure: AbstractStructure) -> None:
    scores = torch.randn(structure.shape, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        return log_partition(structure, x)

    expected = torch.autograd.functional.hessian(value, scores)
    torch.testing.assert_close(grad(value)(scores), marginals(structure, scores))
    for found in (
        hessian(value)(scores),
        jacrev(jacrev(value))(scores),
        jacrev(lambda x: marginals(structure, x))(scores),
        jacfwd(lambda x: marginals(structure, x))(scores),
    ):
        torch.testing.assert_close(found, expected)
    with pytest.raises(NotImplementedError, match="no third derivatives of a log-partition; use"):
        jacrev(hessian(value))(scores)


def test_transitions_that_instances_share() -> None:
    structure, unaries = Sequence(3, 2), torch.randn(4, 3, 2, dtype=torch.float64)
    transitions, direction = torch.randn(2, 2, 2, dtype=torch.float64)
    for solve in (
        lambda t: log_partition(structure, unaries, t),
        lambda t: marginals(structure, unaries, t)[0],
        lambda t: marginals(structure, unaries, t)[1],
    ):
        found = jvp(solve, (transitions,), (direction,))[1]
        expected = slope(solve, transitions, direction)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(jacfwd(solve)(transitions), jacrev(solve)(transitions))


@each
def test_mapped_scores_are_a_batch(structure: AbstractStructure) -> None:
    scores = torch.randn(3, 2, *structure.shape, dtype=torch.float64)
    for function in (log_partition, marginals):
        expected = function(structure, scores)
        for dim in (0, 1):
            found = vmap(lambda x, f=function: f(structure, x), dim, dim)(scores)
            torch.testing.assert_close(found, expected)
    lengths = torch.tensor([1, 3, 2])
    expected = marginals(structure, scores[:, 0], lengths=lengths)
    found = vmap(lambda x, n: marginals(structure, x, lengths=n))(scores[:, 0], lengths)
    torch.testing.assert_close(found, expected)


def test_mapped_transitions() -> None:
    structure, unaries = Sequence(3, 2), torch.randn(5, 3, 2, dtype=torch.float64)
    transitions = torch.randn(5, 2, 2, dtype=torch.float64)
    expected = marginals(structure, unaries, transitions)
    found = vmap(lambda x, t: marginals(structure, x, t))(unaries, transitions)
    torch.testing.assert_close(found, expected)
    alone = vmap(lambda t: log_partition(structure, unaries[0], t))(transitions)
    torch.testing.assert_close(alone[2], log_partition(structure, unaries[0], transitions[2]))


@pytest.mark.slow
@each
def test_compiled(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    for function in (log_partition, marginals, lambda s, x: map_inference(s, x).value):
        torch._dynamo.reset()
        results = []
        for solve in (lambda x, f=function: f(structure, x), None):
            run = solve or torch.compile(lambda x, f=function: f(structure, x), fullgraph=True)
            x = scores.clone().requires_grad_()
            y = run(x)
            results.append((y.detach(), torch.autograd.grad((y * y).sum(), x)[0]))
        torch.testing.assert_close(*results)
