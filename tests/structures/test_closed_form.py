"""SparseMAP in closed form: marginals at once, structures and weights when they are read."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import Bits, Budget, Choice, map_inference, sparsemap, structured_loss
from fenchel.structures import AbstractStructure, _systematic

STRUCTURES = [Bits(6), Budget(6, 2), Budget(6, 3, exact=True), Choice(6)]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)


@pytest.fixture
def decompositions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes of the decompositions so far."""
    calls: list[int] = []
    split = _systematic._split

    def count(ends: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(ends))
        return split(ends, total)

    monkeypatch.setattr(_systematic, "_split", count)
    return calls


@each
def test_structures_are_found_when_they_are_read(
    structure: AbstractStructure, decompositions: list[int]
) -> None:
    scores = torch.randn(5, 6, requires_grad=True)
    target = map_inference(structure, torch.randn(5, 6)).codes
    structured_loss(structure, scores, target).backward()
    posterior = sparsemap(structure, scores)
    posterior.marginals.square().sum().backward()
    assert posterior.converged.all()
    assert (posterior.gap == 0).all()
    assert (posterior.iterations == 0).all()
    assert posterior.extra is None
    assert decompositions == []
    assert posterior.support_size.shape == (5,)
    assert posterior.weights.shape == posterior.codes.shape[:2]
    assert decompositions == [5]


@each
def test_gradients_of_marginals_and_weights(structure: AbstractStructure) -> None:
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([6, 3, 4, 5])

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        posterior = sparsemap(structure, x, lengths=lengths)
        return posterior.marginals, posterior.weights

    assert torch.autograd.gradcheck(both, scores, eps=1e-7, atol=1e-5)
    posterior = sparsemap(structure, scores, lengths=lengths)
    indicator = structure.indicator(posterior.codes)  # type: ignore[attr-defined]
    mean = (posterior.weights.unsqueeze(-1) * indicator).sum(1)
    v = torch.randn(4, 6, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad((v * u).sum(), scores, retain_graph=True)[0]
        for u in (mean, posterior.marginals)
    )
    torch.testing.assert_close(found, expected)


@each
def test_what_is_read_without_gradients_has_them_later(structure: AbstractStructure) -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    read, fresh = (sparsemap(structure, scores) for _ in range(2))
    with torch.no_grad():
        assert repr(read)
        assert read.marginals.shape == (3, 6)
        assert len(read.weights) == 3
    for name in ("marginals", "weights"):
        values = [getattr(posterior, name).square().sum() for posterior in (read, fresh)]
        grads = [torch.autograd.grad(value, scores, retain_graph=True)[0] for value in values]
        torch.testing.assert_close(*grads)
    with torch.no_grad():
        assert not sparsemap(structure, scores).weights.requires_grad


@each
def test_losses_are_those_of_the_active_set(structure: AbstractStructure) -> None:
    scores = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    target = map_inference(structure, torch.randn(8, 6)).codes
    y = structure.indicator(target)  # type: ignore[attr-defined]
    u = sparsemap(structure, scores, method="active_set", tol=1e-13).marginals.detach()
    losses = structured_loss(structure, scores, target, reduction="none")
    expected = ((u - y) * scores).sum(1) - (u * u).sum(1) / 2 + (y * y).sum(1) / 2
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-9)
    (grad,) = torch.autograd.grad(losses.sum(), scores)
    torch.testing.assert_close(grad, u - y, rtol=0, atol=1e-6)


@each
def test_copies(structure: AbstractStructure) -> None:
    posterior = sparsemap(structure, torch.randn(3, 6))
    again = copy.deepcopy(posterior)
    assert again.marginals.equal(posterior.marginals)
    assert again.codes.equal(posterior.codes)
