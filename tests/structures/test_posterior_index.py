"""Parts of a posterior, and posteriors on other devices and of other types."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import (
    Bits,
    Budget,
    Custom,
    DependencyTree,
    FactorGraph,
    Matching,
    Posterior,
    Sequence,
    sparsemap,
)
from fenchel.structures import AbstractStructure, Xor


def one_of_three(scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(scores.argmax(-1), 3)


STRUCTURES = [
    Sequence(3, 2),
    DependencyTree(4),
    Matching(2, 3),
    Budget(5, 2),
    Bits(4),
    Custom((3,), one_of_three, batched=True),
]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)
INDICES = [
    0,
    -1,
    (1, 2),
    slice(1, None),
    slice(0, 0),
    (slice(None), -1),
    (..., 1),
    (..., None),
    [1, 0, 1],
    torch.tensor([1, 0, 1]),
    torch.tensor([[True, False, True], [False, False, True]]),
    torch.tensor([False, True]),
    (torch.tensor([0, 1]), torch.tensor([2, 0])),
]
NAMES = ("marginals", "gap", "iterations", "converged", "support_size")


def check_part(part: Posterior, whole: Posterior, index: object) -> None:
    batch = whole.gap.shape
    numbers = torch.arange(batch.numel()).reshape(batch)[index]

    def expected(name: str) -> Tensor:
        return getattr(whole, name).flatten(0, len(batch) - 1)[numbers]

    for name in NAMES:
        assert getattr(part, name).equal(expected(name))
    width = int(part.support_size.max()) if numbers.numel() else 0
    for name in ("weights", "codes"):
        assert getattr(part, name).equal(expected(name).narrow(numbers.ndim, 0, width))


@each
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_index(structure: AbstractStructure, index: object) -> None:
    scores = torch.randn(2, 3, *structure.shape)
    whole = sparsemap(structure, scores)
    check_part(sparsemap(structure, scores)[index], whole, index)
    check_part(whole[index], whole, index)


@pytest.mark.parametrize("shape", [(2, 2), (3, 1, 2, 2)])
def test_index_with_extra_scores_and_lengths(shape: tuple[int, ...]) -> None:
    scores = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    transitions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    whole = sparsemap(Sequence(4, 2), scores, transitions, lengths=[4, 2, 3])
    part = whole[1:]
    check_part(part, whole, slice(1, None))
    assert part.extra.equal(whole.extra[1:])
    for name in ("marginals", "extra", "weights"):
        totals = getattr(part, name).square().sum(), getattr(whole, name)[1:].square().sum()
        gradients = [
            torch.autograd.grad(total, (scores, transitions), retain_graph=True) for total in totals
        ]
        torch.testing.assert_close(*gradients)
    own = transitions[1:] if len(shape) == 4 else transitions
    again = sparsemap(Sequence(4, 2), scores[1:], own, lengths=[2, 3], start=part)
    assert (again.iterations == 1).all()


def test_index_of_a_graph() -> None:
    graph = FactorGraph((2, 2))
    graph.add(Xor(), graph.variables)
    graph.add(Xor(), graph.variables.T)
    scores = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    whole = sparsemap(graph, scores)
    part = whole[torch.tensor([2, 0])]
    names = ("marginals", "primal_residual", "dual_residual", "iterations", "converged", "feasible")
    for name in names:
        assert getattr(part, name).equal(getattr(whole, name)[[2, 0]])
    for ours, theirs in zip(part.factors, whole.factors, strict=True):
        torch.testing.assert_close(ours.marginals, theirs.marginals[[2, 0]])
    again = sparsemap(graph, scores[[2, 0]], start=part)
    assert (again.iterations <= whole.iterations[[2, 0]]).all()
    assert whole.to(torch.float32).marginals.dtype == torch.float32


def test_a_posterior_can_be_iterated() -> None:
    whole = sparsemap(Bits(3), torch.randn(4, 2, 3))
    assert torch.stack([part.marginals for part in whole]).equal(whole.marginals)


def test_bad_indices() -> None:
    whole = sparsemap(Bits(3), torch.randn(4, 3))
    for index in (4, (0, 0), torch.zeros(3, dtype=torch.bool), torch.tensor(0.5)):
        with pytest.raises(IndexError):
            whole[index]
    with pytest.raises(IndexError):
        whole[0][0]


@each
def test_types(structure: AbstractStructure) -> None:
    scores = torch.randn(2, 3, *structure.shape, requires_grad=True)
    found = sparsemap(structure, scores)
    wide = found.to(torch.float64)
    assert wide.marginals.dtype == wide.weights.dtype == wide.gap.dtype == torch.float64
    assert wide.marginals.float().equal(found.marginals)
    assert wide.codes.to(found.codes).equal(found.codes)
    (gradient,) = torch.autograd.grad(wide.marginals.square().sum(), scores, retain_graph=True)
    (expected,) = torch.autograd.grad(found.marginals.square().sum(), scores, retain_graph=True)
    torch.testing.assert_close(gradient, expected)
    for half in (
        found.to(dtype=torch.bfloat16),
        found.to("cpu", torch.bfloat16),
        found.to(torch.zeros(1, dtype=torch.bfloat16)),
    ):
        assert half.marginals.dtype == half.weights.dtype == torch.bfloat16
        assert half.marginals.equal(found.marginals.bfloat16())
        assert half.support_size.equal(found.support_size)
        assert half[0].marginals.equal(half.marginals[0])
    same = found.to("cpu")
    assert same.marginals.equal(found.marginals)
    assert same.marginals.dtype == torch.float32


def test_a_posterior_of_another_type_is_a_start() -> None:
    structure, scores = DependencyTree(5), torch.randn(3, 5, 5)
    start = sparsemap(structure, scores).to(torch.float64)
    assert (sparsemap(structure, scores.double(), start=start).iterations == 1).all()


def test_types_that_results_cannot_have() -> None:
    found = sparsemap(Bits(3), torch.zeros(3))
    message = r"`dtype` must be bfloat16, float16, float32 or float64, got torch\.int64"
    for target in (torch.int64, torch.zeros(1, dtype=torch.int64)):
        with pytest.raises(TypeError, match=message):
            found.to(target)


@each
def test_reading_in_inference_mode_does_not_cut_gradients(structure: AbstractStructure) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64, requires_grad=True)
    posterior = sparsemap(structure, scores)
    with torch.inference_mode():
        assert posterior.marginals.isfinite().all()
        assert posterior.weights.isfinite().all()
    value = posterior.marginals.square().sum() + posterior.weights.square().sum()
    (gradient,) = torch.autograd.grad(value, scores)
    again = sparsemap(structure, scores)
    value = again.marginals.square().sum() + again.weights.square().sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(value, scores)[0])
