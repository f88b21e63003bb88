"""SparseMAP and its losses under torch.func, forward mode and torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import exact
from conftest import identify
from fenchel import (
    Bits,
    Budget,
    Choice,
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    map_inference,
    sparsemap,
    structured_loss,
)
from fenchel.structures import AbstractStructure

STRUCTURES = [
    Sequence(3, 2),
    DependencyTree(4),
    DependencyTree(4, projective=True),
    Matching(3, 3),
    Budget(5, 2),
    Bits(4),
    Choice(4),
]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)
TOLERANCE = 1e-13


def slope(function, x: Tensor, direction: Tensor) -> Tensor:
    """The derivative in a direction, by finite differences."""
    return (function(x + 1e-6 * direction) - function(x - 1e-6 * direction)) / 2e-6


def own_tree() -> Custom:
    members = exact.members(DependencyTree(3))

    def best(scores: Tensor) -> Tensor:
        value = scores.flatten(-2) @ members.to(scores).flatten(1).T
        return members.to(scores)[value.argmax(-1)]

    return Custom((3, 3), best, batched=True)


@pytest.mark.parametrize("structure", [*STRUCTURES, own_tree()], ids=identify)
def test_forward_mode(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64)
    direction = torch.randn_like(scores)

    def solve(x: Tensor) -> Tensor:
        return sparsemap(structure, x, tol=TOLERANCE).marginals

    expected = slope(solve, scores, direction)
    found = jvp(solve, (scores,), (direction,))[1]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    with forward_ad.dual_level():
        dual = solve(forward_ad.make_dual(scores, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, found)
    square = jacrev(solve)(scores[0])
    torch.testing.assert_close(jacfwd(solve)(scores[0]), square)
    k = scores[0].numel()
    torch.testing.assert_close(square.reshape(k, k), square.reshape(k, k).T)


def test_forward_mode_of_extra_scores_and_weights() -> None:
    structure, scores = Sequence(3, 2), torch.randn(2, 3, 2, dtype=torch.float64)
    transitions, direction = torch.randn(2, 2, 2, dtype=torch.float64)
    base = sparsemap(structure, scores, transitions, tol=TOLERANCE)
    for name in ("marginals", "extra", "weights"):

        def solve(t: Tensor, name: str = name) -> Tensor:
            return getattr(sparsemap(structure, scores, t, tol=TOLERANCE, start=base), name)

        found = jvp(solve, (transitions,), (direction,))[1]
        expected = slope(solve, transitions, direction)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(jacfwd(solve)(transitions), jacrev(solve)(transitions))


@each
@pytest.mark.parametrize("kind", ["sparsemap", "margin_sparsemap", "svm"])
def test_losses(structure: AbstractStructure, kind: str) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    target = map_inference(structure, torch.randn_like(scores)).codes
    direction = torch.randn_like(scores)

    def solve(x: Tensor) -> Tensor:
        return structured_loss(structure, x, target, kind=kind, reduction="none", tol=TOLERANCE)

    def total(x: Tensor) -> Tensor:
        return solve(x).square().sum()

    found = jvp(solve, (scores,), (direction,))[1]
    expected = slope(solve, scores, direction)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    leaf = scores.clone().requires_grad_()
    torch.testing.assert_close(grad(total)(scores), torch.autograd.grad(total(leaf), leaf)[0])
    ground_truth = torch.autograd.functional.hessian(total, scores)
    torch.testing.assert_close(hessian(total)(scores), ground_truth)


@each
def test_vmap_is_refused_with_what_to_do_instead(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape)
    target = map_inference(structure, torch.randn_like(scores)).codes
    remedy = "call it once for the whole batch: `scores` may have any batch dimensions"
    with pytest.raises(NotImplementedError, match=remedy):
        vmap(lambda x: sparsemap(structure, x).marginals)(scores)
    with pytest.raises(NotImplementedError, match=remedy):
        vmap(grad(lambda x: sparsemap(structure, x).marginals.square().sum()))(scores)
    with pytest.raises(NotImplementedError, match=remedy):
        vmap(lambda x, y: structured_loss(structure, x, y))(scores, target)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which dynamo asks for, and hides
@pytest.mark.parametrize("structure", [Sequence(3, 2), DependencyTree(4), Budget(5, 2)])
def test_compiled(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    target = map_inference(structure, torch.randn_like(scores)).codes

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return sparsemap(structure, x).marginals, structured_loss(structure, x, target)

    torch._dynamo.reset()
    results = []
    for run in (both, torch.compile(both)):
        x = scores.clone().requires_grad_()
        u, loss = run(x)
        gradient = torch.autograd.grad(u.square().sum() + loss, x)[0]
        results.append((u.detach(), loss.detach(), gradient))
    torch.testing.assert_close(*results)
