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
from fenchel.ops import _native
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


def compare_compiled(function, *inputs: Tensor, fullgraph: bool = True) -> None:
    """Compares results and gradients in the eager and in the compiled function."""
    torch._dynamo.reset()
    fullgraph = fullgraph and _native.LIBRARY is not None
    results = []
    for run in (function, torch.compile(function, fullgraph=fullgraph, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in inputs]
        found = run(*leaves)
        total = sum(y.square().sum() for y in found if y.requires_grad)
        gradients = torch.autograd.grad(total, leaves)  # type: ignore[arg-type]
        results.append([y.detach() for y in (*found, *gradients)])
    torch.testing.assert_close(*results)


hides_warning = pytest.mark.filterwarnings("ignore:The .grad attribute")  # which dynamo asks for


@hides_warning
@pytest.mark.parametrize("kind", ["sparsemap", "margin_sparsemap"])
def test_compiled_with_extra_scores_and_lengths(kind: str) -> None:
    structure, lengths = Sequence(4, 3), torch.tensor([4, 2])
    scores, transitions = torch.randn(2, 4, 3).double(), torch.randn(3, 3).double()
    target = map_inference(structure, torch.randn(2, 4, 3), lengths=lengths).codes
    assert target is not None

    def both(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        posterior = sparsemap(structure, x, t, lengths=lengths)
        loss = structured_loss(structure, x, target, t, lengths=lengths, kind=kind)
        progress = posterior.gap, posterior.iterations, posterior.converged
        return posterior.marginals, posterior.extra, loss, *progress

    compare_compiled(both, scores, transitions)
    compare_compiled(both, scores, torch.randn(2, 1, 3, 3).double())


@pytest.mark.slow
@hides_warning
@each
def test_compiled(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    target = map_inference(structure, torch.randn_like(scores)).codes
    assert target is not None

    def both(x: Tensor) -> tuple[Tensor, ...]:
        solved = sparsemap(structure, x, method="active_set").marginals
        return sparsemap(structure, x).marginals, solved, structured_loss(structure, x, target)

    compare_compiled(both, scores)
    compare_compiled(both, scores.float())


@hides_warning
@pytest.mark.parametrize("structure", [DependencyTree(3), Bits(3), own_tree()], ids=identify)
def test_what_a_graph_cannot_hold(structure: AbstractStructure) -> None:
    """Structures, weights, and an oracle in Python."""

    def both(x: Tensor) -> tuple[Tensor, ...]:
        posterior = sparsemap(structure, 2 * x)
        return 3 * posterior.marginals, posterior.weights, posterior.codes, posterior.support_size

    scores = torch.randn(2, *structure.shape, dtype=torch.float64)
    compare_compiled(both, scores, fullgraph=False)
    torch._dynamo.reset()
    message = "neither structures nor weights"
    if isinstance(structure, Custom):
        message = "calls Python code, which torch.compile cannot trace"
    elif _native.LIBRARY is None and not structure.has_projection:
        message = r"needs the C\+\+ library to be compiled"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message):
        torch.compile(both, fullgraph=True, backend="aot_eager")(scores)
    if not isinstance(structure, Custom):
        posterior = torch.compile(lambda x: sparsemap(structure, x), backend="aot_eager")(scores)
        assert posterior.weights.equal(sparsemap(structure, scores).weights)
