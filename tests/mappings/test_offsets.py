"""Scores that are large beside their differences: the mapping, its value, its loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import fenchel
from conftest import tolerance, total
from fenchel import Entmax, Ksubset, mappings
from fenchel.mappings import AbstractMapping

GAMMAS = (0.1, 0.7, 30.0)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Ω of `general` may be anything, and its solver stops at a tolerance of its own.
# The value of entmax that close to alpha = 1 is only as exact as its kernel's root.
FAMILY = [
    m for m in mappings.examples() if m.name != "general" and getattr(m, "alpha", 1.5) != 1.0001
]


@st.composite
def shifted_rows(draw: st.DrawFn, dtype: torch.dtype) -> torch.Tensor:
    """Rows with ties, of which the entries differ by little beside a common offset."""
    n = draw(st.integers(4, 9))
    steps = draw(st.lists(st.integers(-8, 8), min_size=2 * n, max_size=2 * n))
    offset = draw(st.sampled_from([0.0, 1.0, 200.0, -3e3, 1e5, -1e5, 1e10, 1e30]))
    if dtype == torch.float16:
        offset = max(min(offset, 2e4), -2e4)
    spread = draw(st.sampled_from([0.05, 0.3, 2.0]))
    rows = torch.tensor(steps, dtype=torch.float64).view(2, n) * spread + offset
    return rows.to(dtype)


def inside(mapping: AbstractMapping, scores: torch.Tensor) -> torch.Tensor:
    """A point of the mapping's set that every type holds exactly: halves, or ones and a rest."""
    share = 0.5 if mapping.total == 1.0 else 1.0
    before = share * torch.arange(scores.shape[-1])
    return (total(mapping) - before).clamp(0, share).to(scores.dtype).expand_as(scores)


def test_a_division_loses_no_difference() -> None:
    scores = torch.tensor([1e5, 1e5 + 0.05])
    expected = fenchel.entmax(scores.double(), gamma=0.1).float()
    torch.testing.assert_close(fenchel.entmax(scores, gamma=0.1), expected)
    torch.testing.assert_close(fenchel.entmax(scores, gamma=torch.tensor(0.1)), expected)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_offsets_cost_no_accuracy(data: st.DataObject) -> None:
    mapping = data.draw(st.sampled_from(FAMILY))
    gamma = data.draw(st.sampled_from(GAMMAS))
    mapping = replace(mapping, gamma=gamma)
    scores = data.draw(shifted_rows(torch.float32))
    y, truth = mapping(scores), mapping(scores.double())
    # Near one of two thresholds alpha = 3 turns what is rounded into its root.
    slack = 1e-3 if getattr(mapping, "alpha", 1.0) > 2 else 8 * tolerance(mapping, torch.float32)
    torch.testing.assert_close(y.double(), truth, rtol=0, atol=slack)
    value, exact = mapping.max(scores).double(), mapping.max(scores.double())
    torch.testing.assert_close(value, exact, rtol=1e-6, atol=1e-5 * gamma)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_losses_are_never_negative(data: st.DataObject) -> None:
    mapping = data.draw(st.sampled_from(FAMILY))
    mapping = replace(mapping, gamma=data.draw(st.sampled_from([1.0, *GAMMAS])))
    dtype = data.draw(st.sampled_from(DTYPES))
    scores = data.draw(shifted_rows(dtype)).requires_grad_()
    solution = mapping(scores).detach()
    if mapping.total == 1.0:
        for target in (scores.argmax(-1), scores.argmin(-1)):
            loss = mapping.loss(scores, target, reduction="none")
            assert (loss >= 0).all()
            smoothed = mapping.loss(scores, target, reduction="none", label_smoothing=0.1)
            assert (smoothed >= 0).all()
            (gradient,) = torch.autograd.grad(loss.sum(), scores)
            hot = torch.nn.functional.one_hot(target, scores.shape[-1])
            torch.testing.assert_close(gradient, (solution - hot).to(dtype), rtol=0.02, atol=0.02)
    assert (mapping.loss(scores, solution, reduction="none") >= 0).all()
    target = inside(mapping, scores)
    loss = mapping.loss(scores, target, reduction="none").double()
    exact = mapping.loss(scores.double(), target.double(), reduction="none")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(loss, exact, rtol=4 * eps, atol=2e-6 * max(1.0, mapping.gamma))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_losses_at_offsets_with_gamma(data: st.DataObject) -> None:
    mapping = data.draw(st.sampled_from([m for m in FAMILY if m.total == 1.0]))
    mapping = replace(mapping, gamma=data.draw(st.sampled_from(GAMMAS)))
    scores = data.draw(shifted_rows(torch.float32))
    target = torch.tensor([0, 1])
    loss = mapping.loss(scores, target, reduction="none")
    exact = mapping.loss(scores.double(), target, reduction="none")
    torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=1e-6 * float(mapping.gamma))


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e5])
def test_beyond_the_margin_a_loss_is_zero(offset: float) -> None:
    scores = offset + torch.tensor([[0.0, -9.0, -20.0]]).repeat(3, 1)
    target = torch.tensor([0, 0, 0])
    hot = torch.nn.functional.one_hot(target, 3).float()
    for mapping in (fenchel.Sparsemax(), Entmax(1.2), Entmax(1.5, gamma=0.5), fenchel.Normmax()):
        assert mapping.loss(scores, target, reduction="none").eq(0).all()
        assert mapping.loss(scores, hot, reduction="none").eq(0).all()
        linear = fenchel.linear_fenchel_young_loss(mapping, torch.eye(3), scores.T, target)
        assert linear == 0


def test_the_gradient_stays_where_rounding_is_cut_off() -> None:
    scores = torch.tensor([[2e5, 2e5 - 0.25, 1.9e5]])
    target = torch.tensor([0])
    for mapping in (fenchel.Fusedmax(), fenchel.Softmax(), Entmax(1.5), fenchel.Sparsemax()):

        def loss(x: torch.Tensor, mapping: AbstractMapping = mapping) -> torch.Tensor:
            return mapping.loss(x, target)

        y = mapping(scores)
        hot = torch.tensor([[1.0, 0.0, 0.0]])
        torch.testing.assert_close(torch.func.grad(loss)(scores), y - hot)
        jacobian = torch.func.jacrev(mapping)(scores)[0, :, 0]
        torch.testing.assert_close(torch.func.hessian(loss)(scores)[0, :, 0], jacobian)


def test_ksubset_is_decided_far_below_the_largest_score() -> None:
    scores = torch.tensor([1e6, 0.30, 0.31, 0.32, -1e6])
    for k in (2.0, torch.tensor(2.0)):
        y = fenchel.ksubset(scores, k=k, gamma=0.1)
        expected = fenchel.ksubset(scores.double(), k=2.0, gamma=0.1)
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-6)
    high = scores + torch.tensor([0.0, 1e5, 1e5, 1e5, 0.0])
    torch.testing.assert_close(
        fenchel.ksubset(high, k=2.0, gamma=0.1).double(),
        fenchel.ksubset(high.double(), k=2.0, gamma=0.1),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("gamma", [0.1, 2.0])
def test_huge_scores(mapping: AbstractMapping, gamma: float) -> None:
    if mapping.name in ("general", "fusedmax", "ksubset"):
        return
    scores = torch.tensor([3e38, -3e38, 3e38])
    y = replace(mapping, gamma=gamma)(scores)
    torch.testing.assert_close(y, torch.tensor([0.5, 0.0, 0.5]))


def test_derivatives_at_an_offset(mapping: AbstractMapping) -> None:
    if mapping.name == "general":
        return
    scores = (1e3 + torch.randn(2, 5, dtype=torch.float64)).requires_grad_()
    gamma = torch.tensor([[0.7], [1.3]], dtype=torch.float64, requires_grad=True)

    def solution(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return replace(mapping, gamma=gamma)(x)

    def value(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return replace(mapping, gamma=gamma).max(x)

    for function in (solution, value):
        assert gradcheck(
            function, (scores, gamma), check_forward_ad=True, check_batched_grad=True, atol=1e-4
        )
        assert gradgradcheck(function, (scores, gamma), atol=1e-4)


def test_thresholds_at_an_offset() -> None:
    scores = 1e5 + torch.tensor([[0.05, 0.0, -0.02, -1.0]])
    for mapping in (fenchel.Sparsemax(gamma=0.1), Entmax(1.5, gamma=0.1), fenchel.Normmax(gamma=2)):
        tau, truth = mapping.tau(scores), mapping.tau(scores.double())
        torch.testing.assert_close(tau.double(), truth, rtol=1e-6, atol=0)
    half = Entmax(1.5, gamma=0.1).tau(torch.tensor([3.0, 2.9, 0.0]).half())
    assert half.dtype == torch.float32
    x = (scores.double() - 1e5).requires_grad_()
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, gamma: Entmax(1.5, gamma=gamma).tau(x), (x, gamma))


def test_a_target_that_is_no_distribution_has_the_loss_of_the_formula() -> None:
    scores = (5 + torch.randn(3, 4, dtype=torch.float64)).requires_grad_()
    target = torch.rand(3, 4, dtype=torch.float64).requires_grad_()
    for mapping in (Entmax(1.5), Entmax(1.5, gamma=0.5), Ksubset(2.0), fenchel.Fusedmax()):

        def loss(
            x: torch.Tensor, y: torch.Tensor, mapping: AbstractMapping = mapping
        ) -> torch.Tensor:
            return mapping.loss(x, y, reduction="none")

        literal = mapping.max(scores) + mapping.gamma * mapping.omega(target)
        torch.testing.assert_close(loss(scores, target), literal - (scores * target).sum(-1))
        assert gradcheck(loss, (scores, target))
        inside = mapping(torch.randn(3, 4, dtype=torch.float64)).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(scores, inside).sum(), inside)
        (slope,) = torch.autograd.grad(mapping.gamma * mapping.omega(inside).sum(), inside)
        torch.testing.assert_close(gradient, slope - scores.detach())
