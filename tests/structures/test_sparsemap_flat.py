"""SparseMAP of flat scores, whose solutions have many structures and are found at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import DependencyTree, Matching, map_inference, sparsemap
from fenchel.ops import _native
from fenchel.structures import AbstractStructure

pytestmark = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")
SMALL = [
    Matching(16, 16),
    Matching(20, 21),
    Matching(24, 20),
    DependencyTree(20),
    DependencyTree(20, single_root=False),
]
FLAT = [*SMALL, Matching(40, 40), DependencyTree(40), DependencyTree(41, single_root=False)]
flat = pytest.mark.parametrize("structure", FLAT, ids=identify)
small = pytest.mark.parametrize("structure", SMALL, ids=identify)


def scores_for(structure: AbstractStructure, *batch: int, scale: float = 0.01) -> Tensor:
    return scale * torch.randn(*batch, *structure.shape, dtype=torch.float64)


def at_once(posterior: Any) -> Tensor:
    """Which instances were solved at once: the active set needs a call for each structure."""
    return posterior.iterations < posterior.support_size


def check(structure: Any, scores: Tensor, tol: float = 1e-6, lengths: Any = None) -> Any:
    """SparseMAP is a distribution over structures with these marginals, and its gap is right."""
    posterior = sparsemap(structure, scores, tol=tol, lengths=lengths)
    weights, u = posterior.weights, posterior.marginals
    assert posterior.converged.all()
    assert ((weights > 0).sum(-1) == posterior.support_size).all()
    torch.testing.assert_close(
        weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-12, rtol=0
    )
    codes = posterior.codes.flatten(0, -3) if scores.ndim > 2 else posterior.codes.unsqueeze(0)
    for b, instance in enumerate(codes):
        instance = instance[: int(posterior.support_size.flatten()[b])]
        size = None if lengths is None else lengths[b].expand(len(instance), -1)
        assert structure.is_valid(instance, size).all()
        assert len(instance.unique(dim=0)) == len(instance)
    indicators = structure.indicator(codes)
    mean = torch.einsum("bk,bk...->b...", weights.reshape(len(codes), -1), indicators.to(u.dtype))
    torch.testing.assert_close(u, mean.reshape(u.shape), atol=1e-12, rtol=0)
    left = torch.where(scores > -torch.inf, scores - u, -torch.inf)
    best = map_inference(structure, left, lengths=lengths).value
    level = torch.where(u > 0, left * u, 0.0).sum((-2, -1))
    torch.testing.assert_close(posterior.gap, (best - level).clamp(min=0), atol=1e-10, rtol=0)
    assert (posterior.gap <= tol + 1e-9).all()
    return posterior


@flat
@pytest.mark.parametrize("tol", [1e-6, 1e-9])
def test_is_optimal(structure: AbstractStructure, tol: float) -> None:
    scores = scores_for(structure, 2).requires_grad_()
    posterior = check(structure, scores, tol)
    assert at_once(posterior).all()


@flat
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-4, 1e-3])
def test_marginals_that_are_nearly_equal(structure: AbstractStructure, scale: float) -> None:
    posterior = check(structure, scores_for(structure, scale=scale))
    assert posterior.iterations < 300


@flat
def test_ties(structure: AbstractStructure) -> None:
    check(structure, torch.zeros(2, *structure.shape).double())
    check(structure, 0.01 * scores_for(structure, 3, scale=1.0).round())


@flat
def test_forbidden_parts(structure: AbstractStructure) -> None:
    for share in (0.2, 0.7):
        scores = scores_for(structure, 2)
        vertex = map_inference(structure, torch.randn_like(scores)).indicator.bool()
        forbidden = (torch.rand_like(scores) < share) & ~vertex
        posterior = check(structure, scores.masked_fill(forbidden, -torch.inf))
        assert (posterior.marginals[forbidden] == 0).all()


@flat
def test_offsets_do_not_matter(structure: AbstractStructure) -> None:
    scores = scores_for(structure)
    near = sparsemap(structure, scores, tol=1e-12).marginals
    far = check(structure, scores + 1000).marginals
    torch.testing.assert_close(far, near, atol=1e-6, rtol=0)


def test_a_batch_of_all_kinds() -> None:
    """Each instance is solved as it would be alone, in a batch of any lengths and scales."""
    structure = Matching(20, 20)
    scores = scores_for(structure, 4, scale=1.0)
    scores[0] *= 0.01
    scores[2] *= 0.01
    scores = scores.requires_grad_()
    lengths = torch.tensor([[20, 20], [20, 20], [18, 15], [15, 18]])
    posterior = check(structure, scores, lengths=lengths)
    assert at_once(posterior).tolist() == [True, False, True, False]
    weights = torch.rand_like(posterior.weights)
    (gradient,) = torch.autograd.grad(
        (posterior.marginals**3).sum() + (posterior.weights * weights).sum(), scores
    )
    for b in range(4):
        one = scores[b].detach().requires_grad_()
        alone = sparsemap(structure, one, lengths=lengths[b])
        assert alone.marginals.equal(posterior.marginals[b])
        size = len(alone.weights)
        assert alone.weights.equal(posterior.weights[b, :size])
        value = (alone.marginals**3).sum() + (alone.weights * weights[b, :size]).sum()
        torch.testing.assert_close(torch.autograd.grad(value, one)[0], gradient[b])


@flat
def test_float32(structure: AbstractStructure) -> None:
    scores = scores_for(structure).float()
    posterior = sparsemap(structure, scores)
    exact = sparsemap(structure, scores.double())
    assert posterior.marginals.dtype == posterior.weights.dtype == torch.float32
    assert posterior.marginals.equal(exact.marginals.float())
    assert posterior.converged


@small
def test_gradient_of_marginals(structure: AbstractStructure) -> None:
    scores = scores_for(structure)
    direction = torch.randn_like(scores)
    step = 1e-4
    above, below = (
        sparsemap(structure, scores + sign * step * direction, tol=1e-9).marginals
        for sign in (1, -1)
    )
    along = torch.func.jvp(
        lambda scores: sparsemap(structure, scores).marginals, (scores,), (direction,)
    )[1]
    torch.testing.assert_close(along, (above - below) / (2 * step), atol=1e-6, rtol=1e-6)
    leaf = scores.clone().requires_grad_()
    posterior = sparsemap(structure, leaf)
    (gradient,) = torch.autograd.grad(posterior.marginals, leaf, direction)
    torch.testing.assert_close(gradient, along)


@small
def test_gradient_of_weights(structure: AbstractStructure) -> None:
    """They are the best weights of these structures: D of the paper times their scores."""
    scores = scores_for(structure).requires_grad_()
    posterior = sparsemap(structure, scores)
    assert at_once(posterior).all()
    rows = structure.indicator(posterior.codes).flatten(1).double()  # type: ignore[attr-defined]
    inverse = torch.linalg.inv(rows @ rows.T + 1)
    ones = inverse.sum(1, keepdim=True)
    d = inverse - ones @ ones.T / ones.sum()
    values = torch.randn_like(posterior.weights)
    (gradient,) = torch.autograd.grad(posterior.weights, scores, values)
    torch.testing.assert_close(gradient.flatten(), rows.T @ d @ values, atol=1e-9, rtol=1e-7)
    direction = torch.randn_like(scores)
    along = torch.func.jvp(
        lambda scores: sparsemap(structure, scores).weights, (scores.detach(),), (direction,)
    )[1]
    torch.testing.assert_close(along, d @ rows @ direction.flatten(), atol=1e-9, rtol=1e-7)


@small
def test_second_order(structure: AbstractStructure) -> None:
    scores = scores_for(structure).requires_grad_()
    posterior = sparsemap(structure, scores)
    value = (posterior.marginals**3).sum()
    (gradient,) = torch.autograd.grad(value, scores, create_graph=True)
    direction = torch.randn_like(scores)
    (second,) = torch.autograd.grad(gradient, scores, direction)

    def slope(scores: Tensor) -> Tensor:
        scores = scores.detach().requires_grad_()
        value = (sparsemap(structure, scores, tol=1e-9).marginals ** 3).sum()
        return torch.autograd.grad(value, scores)[0]

    step = 1e-4
    after, before = slope(scores + step * direction), slope(scores - step * direction)
    torch.testing.assert_close(second, (after - before) / (2 * step), atol=1e-6, rtol=1e-5)


@flat
def test_start_from_many_structures(structure: AbstractStructure) -> None:
    scores = scores_for(structure)
    start = sparsemap(structure, scores)
    again = sparsemap(structure, scores + scores_for(structure, scale=1e-4), start=start)
    assert again.converged
    other = sparsemap(structure, scores_for(structure, scale=3.0), start=start)
    assert other.converged


@flat
@pytest.mark.filterwarnings("ignore::fenchel.ConvergenceWarning")
def test_the_limit_of_calls_holds(structure: AbstractStructure) -> None:
    scores = scores_for(structure)
    for max_iter in (5, 90, 200):
        posterior = sparsemap(structure, scores, max_iter=max_iter)
        assert posterior.iterations <= max_iter
        assert posterior.converged == (posterior.gap <= 1e-6)


@pytest.mark.parametrize("seed", range(20, 30))
def test_no_tree_comes_twice(seed: int) -> None:
    torch.manual_seed(seed)
    scores = 1e-6 * torch.randn(12, 12, dtype=torch.float64)
    posterior = sparsemap(DependencyTree(12, single_root=False), scores)
    assert len(posterior.codes.unique(dim=0)) == int(posterior.support_size)


@small
def test_offsets_change_nothing(structure: AbstractStructure) -> None:
    """Large scores with small differences are solved at once, like small ones."""
    scores = scores_for(structure, 2)
    plain, shifted = (sparsemap(structure, x) for x in (scores, scores + 1e8))
    torch.testing.assert_close(shifted.marginals, plain.marginals, atol=1e-6, rtol=0)
    assert shifted.iterations.equal(plain.iterations)
