"""alpha, gamma and k as numbers and as tensors, and the limits of the families."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fenchel
from conftest import EXAMPLES
from fenchel import Entmax, Ksubset, Normmax, mappings
from fenchel.mappings import AbstractMapping


def test_entmax_at_one_is_softmax_and_at_two_sparsemax() -> None:
    scores = torch.randn(5, 40, dtype=torch.float64)
    torch.testing.assert_close(fenchel.entmax(scores, alpha=1.0), torch.softmax(scores, -1))
    torch.testing.assert_close(fenchel.softmax(scores), torch.softmax(scores, -1))
    torch.testing.assert_close(fenchel.entmax(scores, alpha=2.0), fenchel.sparsemax(scores))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entmax_is_continuous_at_one(dtype: torch.dtype) -> None:
    scores = 3 * torch.randn(5, 100, dtype=torch.float64)
    softmax = torch.softmax(scores, -1)
    log = softmax.log()
    slope = softmax * ((softmax * log**2).sum(-1, keepdim=True) - log**2) / 2  # ∂ŷ/∂α at 1
    for epsilon in (1e-3, 1e-4, 1e-6, 1e-9):
        y = fenchel.entmax(scores.to(dtype), alpha=1 + epsilon)
        error = (y.double() - (softmax + epsilon * slope)).abs().max()
        assert error <= 20 * epsilon**2 + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.1, 1.5, 2.0, 2.5, 4.0])
def test_gradient_in_alpha(alpha: float) -> None:
    scores = torch.randn(4, 6, dtype=torch.float64)
    value = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    v = torch.randn(4, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((fenchel.entmax(scores, alpha=value) * v).sum(), value)
    (of_max,) = torch.autograd.grad(Entmax(value).max(scores).sum(), value)
    step = 1e-5
    left, right = max(alpha - step, 1.0), alpha + step
    y = [fenchel.entmax(scores, alpha=a) for a in (left, right)]
    expected = ((y[1] - y[0]) * v).sum() / (right - left)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    values = [Entmax(a).max(scores).sum() for a in (left, right)]
    torch.testing.assert_close(
        of_max, (values[1] - values[0]) / (right - left), rtol=1e-4, atol=1e-5
    )


def test_the_norm_of_small_entries_does_not_underflow() -> None:
    y = torch.full((8,), 0.125)
    torch.testing.assert_close(Normmax(50.0).omega(y), Normmax(50.0).omega(y.double()).float())
    assert Normmax(50.0).max(torch.zeros(8)) > -0.2


@pytest.mark.parametrize("family", [Entmax, Normmax])
def test_tensor_alpha_per_row(family: type) -> None:
    scores = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[[1.2], [1.5]], [[2.0], [2.5]], [[1.05], [3.0]]], dtype=torch.float64)
    alpha.requires_grad_()
    y = family(alpha)(scores)
    for i in range(3):
        for j in range(2):
            torch.testing.assert_close(y[i, j], family(alpha[i, j, 0].item())(scores[i, j]))
    assert gradcheck(
        lambda x, a: family(a)(x), (scores, alpha), check_forward_ad=True, check_batched_grad=True
    )
    assert gradgradcheck(lambda x, a: family(a)(x), (scores, alpha))
    assert gradcheck(lambda x, a: family(a).max(x), (scores, alpha), check_forward_ad=True)
    assert gradgradcheck(lambda x, a: family(a).max(x), (scores, alpha))
    heads = torch.tensor([[1.2], [1.5]], dtype=torch.float64)
    torch.testing.assert_close(family(heads)(scores)[0, 1], family(1.5)(scores)[0, 1])
    columns = family(torch.tensor([[1.3, 1.5]], dtype=torch.float64))(scores[:, :, 0], dim=0)
    torch.testing.assert_close(columns[:, 1], family(1.5)(scores[:, 1, 0]))


def test_alpha_of_float16_attention_is_learned_in_place() -> None:
    alpha = torch.full((2, 1, 1), 1.5, requires_grad=True)
    y = fenchel.entmax(torch.randn(3, 2, 4, 4, dtype=torch.bfloat16), alpha=alpha)
    assert y.dtype == torch.bfloat16
    y.float().pow(2).sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


@pytest.mark.parametrize("name", [n for n in mappings.names() if n != "general"])
def test_tensor_gamma_broadcasts_and_gets_a_gradient(name: str) -> None:
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor([[0.5], [1.0], [2.0], [0.7]], dtype=torch.float64, requires_grad=True)
    y = mappings.get(name, gamma=gamma)(scores)
    for i, value in enumerate(gamma.flatten().tolist()):
        torch.testing.assert_close(y[i], mappings.get(name, gamma=value)(scores[i]))
    assert gradcheck(lambda x, g: mappings.get(name, gamma=g)(x), (scores, gamma))
    assert gradcheck(lambda x, g: mappings.get(name, gamma=g).max(x), (scores, gamma))


def test_gamma_scales_the_regularizer_of_general() -> None:
    scores = torch.randn(4, 6, dtype=torch.float64)
    general = mappings.get("general", omega=lambda y: (y * y).sum(-1) / 2, gamma=0.5)
    torch.testing.assert_close(general(scores), fenchel.sparsemax(scores, gamma=0.5))


def test_tensor_k_and_its_gradient() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[1.0], [2.5], [4.0]], dtype=torch.float64, requires_grad=True)
    y = fenchel.ksubset(scores, k=k)
    torch.testing.assert_close(y.sum(-1, keepdim=True), k)
    torch.testing.assert_close(y[1], fenchel.ksubset(scores[1], k=2.5))
    assert gradcheck(lambda x, size: fenchel.ksubset(x, k=size, alpha=1.5), (scores, k + 0.1))
    with pytest.raises(NotImplementedError, match="no gradient in `k`"):
        Ksubset(k).max(scores).sum().backward()


def test_ksubset_ends() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64)
    assert fenchel.ksubset(scores, k=0).eq(0).all()
    assert fenchel.ksubset(scores, k=6).eq(1).all()
    torch.testing.assert_close(fenchel.ksubset(scores, k=1), fenchel.sparsemax(scores))
    masked = scores.clone()
    masked[:, 2:] = -torch.inf
    assert fenchel.ksubset(masked, k=3).sum(-1).eq(2).all()


def test_thresholds() -> None:
    scores = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    for alpha in (1.5, 2.0, 2.5):
        entmax = Entmax(alpha)
        tau = entmax.tau(scores)
        y = ((alpha - 1) * scores - tau.unsqueeze(-1)).clamp(min=0) ** (1 / (alpha - 1))
        torch.testing.assert_close(y, entmax(scores))
    torch.testing.assert_close(
        (scores - fenchel.Sparsemax().tau(scores, 0)).clamp(min=0), fenchel.sparsemax(scores, 0)
    )
    u = (scores - fenchel.Normmax(3.0).tau(scores).unsqueeze(-1)).clamp(min=0)
    torch.testing.assert_close(u.pow(1.5).sum(-1), torch.ones(4, dtype=torch.float64))
    u = (scores - fenchel.Pnormmax(1.5).tau(scores).unsqueeze(-1)).clamp(min=0)
    torch.testing.assert_close(u.pow(2).sum(-1), u.pow(3).sum(-1).pow(1 / 3))
    assert gradcheck(fenchel.Sparsemax().tau, (scores,))
    with pytest.raises(NotImplementedError, match="softmax has no threshold"):
        fenchel.Softmax().tau(scores)
    with pytest.raises(NotImplementedError, match="no threshold up to alpha = 1"):
        Entmax(1.0).tau(scores)
    alphas = torch.tensor([[0.5], [1.0], [1.5], [2.0]])
    tau = Entmax(alphas).tau(scores.float())
    assert tau[:2].eq(-torch.inf).all()
    torch.testing.assert_close(tau[3], fenchel.Sparsemax().tau(scores[3].float()))


def test_get_by_name() -> None:
    assert mappings.get("entmax", alpha=1.3).alpha == 1.3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the name of a mapping must be one of entmax, fusedmax"):
        mappings.get("hardmax")
    with pytest.raises(TypeError, match="entmax has no option `lam`; it takes alpha, gamma"):
        mappings.get("entmax", lam=1.0)


def test_a_mapping_of_ones_own_works_everywhere() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, eq=False)
    class Halved(mappings.AbstractMapping):
        name = "halved"

        def solve(self, scores: torch.Tensor) -> torch.Tensor:
            return torch.softmax(scores / 2, -1)

        def jvp(self, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return y * (v - (y * v).sum(-1, keepdim=True)) / 2

        def omega(self, y: torch.Tensor) -> torch.Tensor:
            return 2 * torch.special.xlogy(y, y).sum(-1)

        @classmethod
        def examples(cls):
            yield cls()

    try:
        scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        halved = mappings.get("halved")
        assert gradcheck(halved, (scores,), check_forward_ad=True)
        loss = halved.loss(scores, torch.tensor([0, 1, 2]))
        expected = 2 * torch.nn.functional.cross_entropy(scores / 2, torch.tensor([0, 1, 2]))
        torch.testing.assert_close(loss, expected)
        with pytest.raises(ValueError, match="already registered"):
            type("Other", (mappings.AbstractMapping,), {"name": "halved"})
    finally:
        from fenchel.mappings import _base

        del _base.REGISTRY.classes["halved"]


def test_large_rows_in_float32_are_exact() -> None:
    for scale in (1, 10, 100):
        scores = scale * torch.randn(2, 100_000)
        for alpha in (1.5, 2.0):
            y = fenchel.entmax(scores, alpha=alpha).double()
            truth = fenchel.entmax(scores.double(), alpha=alpha)
            assert (y - truth).abs().max() <= 2e-7
            assert (y.sum(-1) - 1).abs().max() <= 3e-7
        y = fenchel.entmax(scores, alpha=1.3).double()
        assert (y - fenchel.entmax(scores.double(), alpha=1.3)).abs().max() <= 3e-7
        assert (y.sum(-1) - 1).abs().max() <= 3e-7
    assert math.isclose(fenchel.softmax(torch.zeros(4)).sum(), 1.0)


DELETED = [
    [1.0, -torch.inf, 0.3, 0.9],
    [-torch.inf, 0.2, 0.1, -torch.inf],
    [-torch.inf, -torch.inf, -torch.inf, 0.5],
]
"""Scores with entries that are deleted."""
WITH_GAMMA = {name: mapping for name, mapping in EXAMPLES.items() if mapping.gamma == 1.0}


@pytest.mark.parametrize("use", ["solution", "max", "loss", "class loss"])
@pytest.mark.parametrize("mapping", WITH_GAMMA.values(), ids=WITH_GAMMA)
def test_gradient_in_gamma_where_scores_are_deleted(mapping: AbstractMapping, use: str) -> None:
    if use == "class loss" and mapping.total != 1.0:
        pytest.skip("it has no loss of classes")
    scores = torch.tensor(DELETED, dtype=torch.float64)[: 1 if mapping.name == "ksubset" else 3]
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    target = torch.softmax(scores, -1) * (mapping.total or 1.0)

    def function(gamma: torch.Tensor) -> torch.Tensor:
        at = replace(mapping, gamma=gamma)
        if use == "solution":
            return (at(scores) * v).sum()
        if use == "max":
            return at.max(scores).sum()
        return at.loss(scores, target if use == "loss" else scores.argmax(-1), reduction="sum")

    (gradient,) = torch.autograd.grad(function(gamma), gamma)
    step = 1e-5
    with torch.no_grad():
        expected = (function(gamma + step) - function(gamma - step)) / (2 * step)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("low", [torch.finfo(torch.float64).min, -1e308])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "normmax", "fusedmax"])
def test_gradient_in_gamma_where_scores_are_very_low(name: str, low: float) -> None:
    scores = torch.tensor(DELETED, dtype=torch.float64)
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    v = torch.arange(4.0).double()

    def gradient(scores: torch.Tensor) -> torch.Tensor:
        output = mappings.get(name, gamma=gamma)(scores) @ v
        return torch.autograd.grad(output.sum(), gamma)[0]

    torch.testing.assert_close(gradient(scores.clamp(min=low)), gradient(scores))


def test_other_derivatives_in_gamma_where_scores_are_deleted() -> None:
    scores = torch.tensor(DELETED, dtype=torch.float64)
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def solution(gamma: torch.Tensor) -> torch.Tensor:
        return Entmax(1.5, gamma=gamma)(scores)

    assert gradcheck(solution, (gamma,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(solution, (gamma,))
    assert gradcheck(lambda gamma: Entmax(1.5, gamma=gamma).tau(scores), (gamma,))
    expected = torch.autograd.functional.jacobian(solution, gamma)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(solution)(gamma.detach()), expected)


def test_a_row_of_deleted_scores_leaves_gamma_alone() -> None:
    scores = torch.tensor([DELETED[0], [-torch.inf] * 4], dtype=torch.float64)
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mapping = Entmax(1.5, gamma=gamma)
    v = torch.arange(4.0)
    pairs = (
        (mapping(scores) @ v.double(), mapping(scores[0]) @ v.double()),
        (mapping.max(scores)[0], mapping.max(scores[0])),
        (
            mapping.loss(scores, torch.tensor([2, -100]), reduction="sum"),
            mapping.loss(scores[0], torch.tensor(2)),
        ),
    )
    for both, alone in pairs:
        found = torch.autograd.grad(both.sum(), gamma)
        torch.testing.assert_close(found, torch.autograd.grad(alone.sum(), gamma))
