"""SparseMAP with batched gradients, with the norm of extra scores that were not given, and without
batch dimensions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from conftest import identify
from fenchel import (
    Bits,
    Custom,
    DependencyTree,
    FactorGraph,
    Matching,
    Sequence,
    sparsemap,
    structured_loss,
)
from fenchel.ops import _native
from fenchel.structures import AbstractStructure, Xor


def largest(scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])


STRUCTURES = [
    DependencyTree(3),
    DependencyTree(3, projective=True),
    Matching(3, 3),
    Custom((4,), largest, batched=True),
    Bits(3),
]
every = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)


@pytest.fixture(params=["native", "reference"])
def kernels(request, monkeypatch) -> None:
    if request.param == "reference":
        monkeypatch.setattr(_native, "LIBRARY", None)


def check_jacobians(function, *inputs: Tensor) -> None:
    """Compares Jacobians whose rows are found at once with those of one row after the other."""
    at_once = jacobian(function, inputs, vectorize=True)
    torch.testing.assert_close(at_once, jacobian(function, inputs))


@every
@pytest.mark.parametrize("size", [1.0, 0.01])
def test_batched_gradients(structure: AbstractStructure, size: float, kernels: None) -> None:
    scores = size * torch.randn(2, *structure.shape, dtype=torch.float64)
    check_jacobians(lambda x: sparsemap(structure, x).marginals, scores)
    check_jacobians(lambda x: sparsemap(structure, x).weights, scores)


@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 3, 3), (2, 2, 3, 3)])
def test_batched_gradients_of_extra(shape: tuple[int, ...], kernels: None) -> None:
    scores = torch.randn(2, 3, 3, dtype=torch.float64)
    extra_scores = torch.randn(shape, dtype=torch.float64)
    for name in ("marginals", "extra", "weights"):

        def found(*inputs: Tensor, name=name) -> Tensor:
            return getattr(sparsemap(Sequence(3, 3), *inputs), name)

        check_jacobians(found, scores, extra_scores)


def test_batched_gradients_where_solved_at_once(kernels: None) -> None:
    """Flat scores of many structures."""
    scores = 0.01 * torch.randn(2, 6, 6, dtype=torch.float64)
    check_jacobians(lambda x: sparsemap(Matching(6, 6), x).marginals, scores)


@every
def test_batched_gradients_of_loss(structure: AbstractStructure, kernels: None) -> None:
    scores = 0.3 * torch.randn(structure.shape, dtype=torch.float64)
    target = torch.zeros_like(scores)

    def loss(scores: Tensor) -> Tensor:
        return structured_loss(structure, scores, target, kind="sparsemap")

    at_once = hessian(loss, scores, vectorize=True)
    torch.testing.assert_close(at_once, hessian(loss, scores))


def test_is_grads_batched(kernels: None) -> None:
    scores = 0.2 * torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    posterior = sparsemap(DependencyTree(3), scores)
    outputs = posterior.marginals, posterior.weights
    vectors = [torch.randn(5, *output.shape, dtype=torch.float64) for output in outputs]
    rest = {"retain_graph": True, "create_graph": True}
    (found,) = torch.autograd.grad(outputs, scores, vectors, is_grads_batched=True, **rest)
    each = zip(*vectors, strict=True)
    expected = [torch.autograd.grad(outputs, scores, pair, **rest)[0] for pair in each]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("options", [{}, {"lengths": [1, 1]}, {"method": "pairwise", "tol": 1e-12}])
def test_norm_of_transitions_that_are_not_given(length: int, options: dict) -> None:
    structure, scores = Sequence(length, 3), 0.4 * torch.randn(2, length, 3)
    zeros = torch.zeros(3, 3)
    expected = sparsemap(structure, scores, zeros, regularize_extra=True, **options)
    found = sparsemap(structure, scores, None, regularize_extra=True, **options)
    assert found.marginals.equal(expected.marginals)
    assert found.extra is None


def test_norm_of_extra_scores_of_your_own_that_are_not_given() -> None:
    structure = Custom((4,), lambda x, extra: (largest(x + extra),) * 2, extra_shape=(4,))
    scores = 0.3 * torch.randn(4)
    expected = sparsemap(structure, scores, torch.zeros(4), regularize_extra=True).marginals
    assert sparsemap(structure, scores, regularize_extra=True).marginals.equal(expected)
    assert not sparsemap(structure, scores).marginals.allclose(expected)


@pytest.mark.parametrize("structure", [Bits(3), Matching(2, 2)], ids=identify)
def test_norm_of_extra_scores_where_there_are_none(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape)
    found = sparsemap(structure, scores, regularize_extra=True)
    assert found.marginals.equal(sparsemap(structure, scores).marginals)


def graph() -> FactorGraph:
    graph = FactorGraph((2,))
    graph.add(Xor(2), torch.tensor([[0, 1]]))
    return graph


@pytest.mark.parametrize("structure", [Bits(2), graph()], ids=["bits", "graph"])
def test_iteration(structure: AbstractStructure) -> None:
    with pytest.raises(TypeError, match="without batch dimensions"):
        iter(sparsemap(structure, torch.randn(2)))
    posterior = sparsemap(structure, torch.randn(3, 2, 2))
    rows = [part.marginals for part in posterior]
    assert torch.stack(rows).equal(posterior.marginals)
    assert not list(sparsemap(structure, torch.randn(0, 2)))
