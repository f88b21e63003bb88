"""Gradients of SparseMAP where the structures found do not span the face of the solution."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from brute import list_codes
from torch import Tensor

import exact
from conftest import identify
from fenchel import Custom, DependencyTree, Matching, Sequence, map_inference, sparsemap, sparsemax
from fenchel.ops import _native
from fenchel.structures import AbstractStructure

STRUCTURES = [
    DependencyTree(4),
    DependencyTree(4, single_root=False),
    DependencyTree(4, projective=True),
    Matching(4, 4),
    Matching(3, 5),
    Matching(4, 3),
]
SCALES = [0.01, 0.1, 1.0]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)
scales = pytest.mark.parametrize("scale", SCALES)
both_solvers = pytest.mark.parametrize("native", [True, False], ids=["native", "reference"])


def solver(native: bool) -> Any:
    """Patches the library away unless it is wanted."""
    if native and _native.LIBRARY is None:
        pytest.skip("there is no native library")
    return mock.patch.object(_native, "LIBRARY", _native.LIBRARY if native else None)


def own(structure: AbstractStructure) -> Custom:
    return Custom(structure.shape, lambda x: map_inference(structure, x).indicator)


def directions(scores: Tensor, members: Tensor, u: Tensor) -> Tensor:
    """The projection (n, n) onto the face that holds the closest point u to scores (n,): onto the
    differences of the members (K, n) that are best for scores less u."""
    values = members @ (scores - u)
    best = members[values > values.max() - 1e-7]
    _, size, basis = torch.linalg.svd(best - best[0], full_matrices=False)
    basis = basis[size > 1e-9]
    return basis.T @ basis


def exact_point(scores: Tensor, members: Tensor, u: Tensor) -> Tensor:
    """The closest point, from one near it."""
    for _ in range(3):
        values = members @ (scores - u)
        near = members[values > values.max() - 1e-4].mean(0)
        u = near + directions(scores, members, u) @ (scores - near)
    return u


def members_of(structure: AbstractStructure) -> Tensor:
    return exact.members(structure).flatten(1).double()


@both_solvers
@scales
@each
def test_jacobian_is_the_projection_onto_the_face(
    structure: AbstractStructure, scale: float, native: bool
) -> None:
    members = members_of(structure)
    scores = (scale * torch.randn(6, *structure.shape).double()).requires_grad_()
    v = torch.randn_like(scores)
    with solver(native):
        for chosen in (structure, own(structure)):
            near = sparsemap(chosen, scores, tol=1e-12).marginals.detach()
            posterior = sparsemap(chosen, scores, tol=1e-2)
            (found,) = torch.autograd.grad((posterior.marginals * v).sum(), scores)
            for x, u, w, got in zip(scores.detach(), near, v, found, strict=True):
                u = exact_point(x.flatten(), members, u.flatten())
                expected = directions(x.flatten(), members, u) @ w.flatten()
                torch.testing.assert_close(got.flatten(), expected, atol=1e-8, rtol=0)


@scales
def test_sequences_are_sparsemax_at_each_position(scale: float) -> None:
    scores = (scale * torch.randn(2, 50, 20).double()).requires_grad_()
    v = torch.randn_like(scores)
    (expected,) = torch.autograd.grad((sparsemax(scores) * v).sum(), scores)
    for method in (None, "active_set"):
        posterior = sparsemap(Sequence(50, 20), scores, method=method)
        torch.testing.assert_close(posterior.marginals, sparsemax(scores), atol=2e-3, rtol=0)
        (found,) = torch.autograd.grad((posterior.marginals * v).sum(), scores)
        torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


@both_solvers
@pytest.mark.parametrize("pairs", [(), (3,)], ids=["shared", "of-each-pair"])
def test_transitions_move_with_their_marginals(native: bool, pairs: tuple[int, ...]) -> None:
    """Central differences of a solution with a small gap, by scores and transitions."""
    structure = Sequence(4, 3)
    inputs = 0.1 * torch.randn(4, 3).double(), 0.1 * torch.randn(*pairs, 3, 3).double()
    moves = [torch.randn_like(x) for x in inputs]
    weights = [torch.randn_like(x) for x in inputs]

    def value(tol: float, *arguments: Tensor) -> Tensor:
        posterior = sparsemap(structure, *arguments, tol=tol)
        return (posterior.marginals * weights[0]).sum() + (posterior.extra * weights[1]).sum()

    step = 1e-6
    with solver(native):
        leaves = [x.clone().requires_grad_() for x in inputs]
        gradients = torch.autograd.grad(value(1e-2, *leaves), leaves)
        along = sum((g * m).sum() for g, m in zip(gradients, moves, strict=True))
        sides = [
            value(1e-14, *(x + sign * step * m for x, m in zip(inputs, moves, strict=True)))
            for sign in (1, -1)
        ]
    torch.testing.assert_close(along, (sides[0] - sides[1]) / (2 * step), atol=1e-6, rtol=1e-5)


@both_solvers
def test_both_modes_and_second_derivatives(native: bool) -> None:
    structure = Matching(3, 3)
    scores, v = 0.05 * torch.randn(2, 3, 3).double(), torch.randn(2, 3, 3).double()

    def loose(x: Tensor) -> Tensor:
        return sparsemap(structure, x, tol=0.3).marginals

    with solver(native):
        leaf = scores.clone().requires_grad_()
        (backward,) = torch.autograd.grad((loose(leaf) * v).sum(), leaf, create_graph=True)
        _, forward = torch.func.jvp(loose, (scores,), (v,))
        (again,) = torch.autograd.grad(
            (loose(leaf).square() * v).sum() + (backward * v).sum(), leaf
        )
        (twice,) = torch.autograd.grad((loose(leaf).square() * v).sum(), leaf)
    torch.testing.assert_close(forward, backward.detach(), atol=1e-10, rtol=0)
    torch.testing.assert_close(again, twice)  # the Jacobian is constant around the scores


def test_weights_keep_their_own_gradient() -> None:
    """That of the structures found, together with that of the marginals."""
    structure = DependencyTree(5)
    scores = (0.1 * torch.randn(3, 5, 5).double()).requires_grad_()
    posterior = sparsemap(structure, scores, tol=1e-2)
    u, weights = posterior.marginals, posterior.weights
    v, w = torch.randn_like(u), torch.randn_like(weights)
    apart = [
        torch.autograd.grad((x * y).sum(), scores, retain_graph=True)[0]
        for x, y in ((u, v), (weights, w))
    ]
    (together,) = torch.autograd.grad((u * v).sum() + (weights * w).sum(), scores)
    torch.testing.assert_close(together, apart[0] + apart[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_marginals_have_the_same_gradient() -> None:
    if _native.LIBRARY is None:
        pytest.skip("without a library it is not compiled")
    scores = (0.01 * torch.randn(2, 6, 6).double()).requires_grad_()
    v = torch.randn_like(scores)

    def marginals(x: Tensor) -> Tensor:
        return sparsemap(DependencyTree(6), x).marginals

    (expected,) = torch.autograd.grad((marginals(scores) * v).sum(), scores)
    compiled = torch.compile(marginals, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad((compiled(scores) * v).sum(), scores)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_forbidden_parts_and_lengths() -> None:
    """They are as if they were not there."""
    scores = 0.05 * torch.randn(5, 5).double()
    scores[1, 3] = scores[4, 0] = -torch.inf
    longer = torch.full((2, 7, 7), -0.5).double()
    longer[:, :5, :5] = scores
    leaf, part = longer.requires_grad_(), scores.clone().requires_grad_()
    lengths = torch.tensor([5, 5])
    u = sparsemap(DependencyTree(7), leaf, lengths=lengths, tol=1e-2).marginals
    alone = sparsemap(DependencyTree(5), part, tol=1e-2).marginals
    v = torch.randn(5, 5).double()
    (found,) = torch.autograd.grad((u[:, :5, :5] * v).sum(), leaf)
    (expected,) = torch.autograd.grad((alone * v).sum(), part)
    torch.testing.assert_close(found[:, :5, :5], expected.expand(2, 5, 5), atol=1e-9, rtol=0)
    assert (found[:, 5:] == 0).all()
    assert (found[:, :, 5:] == 0).all()
    assert expected[1, 3] == 0


@both_solvers
@each
def test_equal_scores(structure: AbstractStructure, native: bool) -> None:
    """A solution of few structures whose gap is zero, on a face of many dimensions. Without a bound
    on the roots of trees, it lies at a kink."""
    if isinstance(structure, DependencyTree) and not structure.single_root:
        pytest.skip("has no derivative")
    members = members_of(structure)
    scores = torch.zeros(structure.shape, dtype=torch.float64, requires_grad=True)
    v = torch.randn_like(scores)
    with solver(native):
        for tol in (1e-6, 0.0):
            u = sparsemap(structure, scores, tol=tol).marginals
            (found,) = torch.autograd.grad((u * v).sum(), scores)
            expected = directions(scores.detach().flatten(), members, u.detach().flatten())
            got = found.flatten()
            torch.testing.assert_close(got, expected @ v.flatten(), atol=1e-8, rtol=0)


def test_gradients_do_not_depend_on_tol() -> None:
    scores = (0.03 * torch.randn(10, 10, 10).double()).requires_grad_()
    v = torch.randn_like(scores)
    found = [
        torch.autograd.grad(
            (sparsemap(DependencyTree(10), scores, tol=tol).marginals * v).sum(), scores
        )[0]
        for tol in (1e-2, 1e-6, 1e-9, 0.0)
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-8, rtol=0)


@both_solvers
def test_lengths_under_transforms(native: bool) -> None:
    scores, v = torch.randn(2, 4, 4).double(), torch.randn(2, 4, 4).double()
    lengths = torch.tensor([4, 2])

    def value(x: Tensor) -> Tensor:
        return (sparsemap(DependencyTree(4), x, lengths=lengths).marginals * v).sum()

    leaf = scores.clone().requires_grad_()
    with solver(native):
        (expected,) = torch.autograd.grad(value(leaf), leaf)
        torch.testing.assert_close(torch.func.grad(value)(scores), expected)
        _, along = torch.func.jvp(value, (scores,), (v,))
    torch.testing.assert_close(along, (expected * v).sum())


def test_structures_are_listed_right() -> None:
    """The ground truth above."""
    for structure in STRUCTURES:
        assert len(members_of(structure)) == len(list_codes(structure))
