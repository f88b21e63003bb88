"""The projections of factors, against SparseMAP over the list of their structures."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fenchel import Custom, map_inference, sparsemap, testing
from fenchel.structures import (
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)
from fenchel.structures._factors import LogicFactor

RULES = {
    Xor: lambda bits: sum(bits) == 1,
    AtMostOne: lambda bits: sum(bits) <= 1,
    Or: any,
    Imply: lambda bits: bits[-1] or not all(bits[:-1]),
    XorOut: lambda bits: sum(bits[:-1]) == bits[-1],
    OrOut: lambda bits: any(bits[:-1]) == bits[-1],
    AndOut: lambda bits: all(bits[:-1]) == bits[-1],
}
LOGIC = [cls(d) for cls in RULES for d in (cls.min_size, 3, 4)]


def members(factor: LogicFactor) -> Tensor:
    bits = itertools.product((0, 1), repeat=factor.d or 0)
    return torch.tensor([x for x in bits if RULES[type(factor)](x)], dtype=torch.float64)


def custom(vertices: Tensor) -> Custom:
    def best(scores: Tensor) -> Tensor:
        values = torch.where(vertices == 0, 0.0, scores.unsqueeze(1) * vertices).sum(-1)
        return vertices[values.argmax(-1)]

    return Custom((vertices.shape[1],), best, batched=True)


@pytest.mark.parametrize("factor", [cls(3) for cls in RULES], ids=str)
def test_the_structure_keeps_its_contract(factor: LogicFactor) -> None:
    testing.check_structure(factor, members(factor))


@pytest.mark.parametrize("factor", LOGIC, ids=str)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_projections(factor: LogicFactor, scale: float) -> None:
    scores = 0.3 + scale * torch.randn(50, *factor.shape, dtype=torch.float64)
    truth = sparsemap(custom(members(factor)), scores, tol=1e-13).marginals
    torch.testing.assert_close(factor.project(scores), truth, rtol=0, atol=1e-7)


@pytest.mark.parametrize("factor", [x for x in LOGIC if x.d != 1], ids=str)
def test_projections_of_forbidden_bits(factor: LogicFactor) -> None:
    scores = torch.randn(20, *factor.shape, dtype=torch.float64)
    for k in range(scores.shape[1]):
        scores_k = scores.clone()
        scores_k[:, k] = -torch.inf
        allowed = members(factor)
        allowed = allowed[allowed[:, k] == 0]
        truth = sparsemap(custom(allowed), scores_k, tol=1e-13).marginals
        torch.testing.assert_close(factor.project(scores_k), truth, rtol=0, atol=1e-7)


@pytest.mark.parametrize("factor", LOGIC, ids=str)
def test_projections_of_ties(factor: LogicFactor) -> None:
    for value in (-1.0, 0.0, 0.5, 1.0):
        scores = torch.full((1, *factor.shape), value, dtype=torch.float64)
        truth = sparsemap(custom(members(factor)), scores, tol=1e-13).marginals
        torch.testing.assert_close(factor.project(scores), truth, rtol=0, atol=1e-7)


@pytest.mark.parametrize("factor", LOGIC, ids=str)
def test_derivatives_of_projections(factor: LogicFactor) -> None:
    scores = torch.randn(20, *factor.shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(factor.project, scores)


def test_a_pair() -> None:
    scores = (1.5 * torch.randn(200, 2, dtype=torch.float64)).requires_grad_()
    coupling = (1.5 * torch.randn(200, 1, dtype=torch.float64)).requires_grad_()
    u, v = Pair().project_with_extra(scores, coupling)
    solved = sparsemap(Pair(), scores, coupling.squeeze(1), tol=1e-13)
    torch.testing.assert_close(u, solved.marginals, rtol=0, atol=1e-7)
    torch.testing.assert_close(v.squeeze(1), solved.extra, rtol=0, atol=1e-7)
    assert torch.autograd.gradcheck(Pair().project_with_extra, (scores, coupling))
    values = torch.stack(
        [0 * scores[:, 0], scores[:, 0], scores[:, 1], scores.sum(1) + coupling[:, 0]]
    )
    best = map_inference(Pair(), scores, coupling.squeeze(1))
    torch.testing.assert_close(best.value, values.amax(0))


@pytest.mark.parametrize("budget", [0.0, 0.5, 2.5, 6.0])
def test_a_knapsack(budget: float) -> None:
    factor = Knapsack((1.0, 2.0, 0.0, 3.0), budget)
    scores = (0.5 + 1.5 * torch.randn(60, 4, dtype=torch.float64)).requires_grad_()
    y = factor.project(scores)
    assert ((y >= 0) & (y <= 1)).all()
    assert ((y * y.new_tensor(factor.costs)).sum(1) <= budget + 1e-12).all()
    solved = sparsemap(factor, scores, tol=1e-12)
    torch.testing.assert_close(y, solved.marginals, rtol=0, atol=1e-7)
    assert torch.autograd.gradcheck(factor.project, scores)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="`d` must be at least 2, got 1"):
        Imply(1)
    with pytest.raises(ValueError, match="`d` must be the number of bits"):
        sparsemap(Xor(), torch.zeros(3))
    with pytest.raises(ValueError, match=r"`costs` must have at least one number, got \(\)"):
        Knapsack((), 1.0)
    with pytest.raises(TypeError, match="`costs` must be a tuple of numbers, got list"):
        Knapsack([1.0], 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`costs` must be at least 0"):
        Knapsack((-1.0,), 1.0)
    with pytest.raises(ValueError, match="`budget` must be at least 0"):
        Knapsack((1.0,), -1.0)
