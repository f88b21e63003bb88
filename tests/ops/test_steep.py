"""The Jacobian of entmax with α > 2, where the smallest entry of the support dominates the mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fenchel
from fenchel.ops import entmax, ksubset

ALPHAS = [2.5, 3.0, 4.0, 8.0]
FLAT_ALPHAS = [0.5, 1.0, 1.3, 1.5, 2.0]
DTYPES = [torch.float32, torch.bfloat16]
LENGTHS = [2, 3, 10, 50]
Product = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def smallest(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y > 0, y, 1.0).amin(-1)


def steep_rows(d: int, alpha: float, dtype: torch.dtype) -> torch.Tensor:
    """Scores whose solutions have a smallest entry between 1e-5 and 1e-2."""
    if dtype == torch.float32:
        y = torch.rand(40, d, dtype=torch.float64) + 0.1
        y /= y.sum(-1, keepdim=True)
        y[:, 0] = 10 ** torch.linspace(-5, -2, 40, dtype=torch.float64).clamp(-4.9, -2.1)
        y[:, 1:] *= (1 - y[:, :1]) / y[:, 1:].sum(-1, keepdim=True)
        scores = y ** (alpha - 1) / (alpha - 1)
    else:
        scores = torch.rand(20_000, d, dtype=torch.float64) * (2 / alpha)
    scores = scores.to(dtype)
    least = smallest(entmax.entmax(scores.double(), alpha))
    scores = scores[(least > 1e-5) & (least < 1e-2)][:40]
    assert len(scores)
    return scores


def exact_product(y: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    """Σ_j s_i s_j (v_i − v_j) / Σ s in float64: nothing cancels but what must."""
    s = torch.where(y > 0, torch.where(y > 0, y, 1.0) ** (2 - alpha), 0.0)
    share = s / s.sum(-1, keepdim=True)
    pairs = v.unsqueeze(-1) - v.unsqueeze(-2)
    return (s.unsqueeze(-1) * share.unsqueeze(-2) * pairs).sum(-1)


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative to the largest entry of each row, in roundings of its type."""
    off, size = (found.double() - truth).abs().amax(-1), truth.abs().amax(-1)
    return float((off / torch.where(size > 0, size, 1.0)).max()) / torch.finfo(found.dtype).eps


def gradient(scores: torch.Tensor, v: torch.Tensor, alpha: float | torch.Tensor) -> torch.Tensor:
    scores = scores.detach().requires_grad_()
    return torch.autograd.grad(fenchel.entmax(scores, alpha=alpha), scores, v)[0]


def differentiable_gradient(scores: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    scores = scores.detach().requires_grad_()
    y = fenchel.entmax(scores, alpha=alpha)
    return torch.autograd.grad(y, scores, v, create_graph=True)[0].detach()


def gradient_with_alphas(scores: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    return gradient(scores, v, torch.full((len(scores), 1), alpha))


def func_gradient(scores: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.func.vjp(lambda x: fenchel.entmax(x, alpha=alpha), scores)[1](v)[0]


WAYS = [gradient, differentiable_gradient, gradient_with_alphas, func_gradient]


def reference_product(y: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    return entmax.reference.entmax_jvp(y.double(), v.double(), alpha).to(v.dtype)


def rounded_reference_product(y: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    return entmax.reference.entmax_jvp(y, v, alpha)


def triton_product(tile: int | None, per_row: bool) -> Product:
    def product(y: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
        pytest.importorskip("triton", reason="Triton is not made for this platform")
        from fenchel.ops._triton.jvp import jvp
        from fenchel.ops._triton.root import ENTMAX

        device = "cuda" if torch.cuda.is_available() else "cpu"
        given = torch.full((len(y), 1), alpha, device=device) if per_row else alpha
        return jvp(y.to(device), v.to(device), given, ENTMAX, tile).cpu()

    return product


PRODUCTS = {
    "kernel": entmax.entmax_jvp,
    "reference": reference_product,
    "reference of the type": rounded_reference_product,
    "ksubset": ksubset.ksubset_jvp,
    "ksubset's reference": ksubset.reference.ksubset_jvp,
    "triton": triton_product(None, False),
    "triton in tiles": triton_product(16, False),
    "triton, one alpha per row": triton_product(None, True),
    "triton in tiles, one alpha per row": triton_product(16, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha: float, dtype: torch.dtype, way: Product) -> None:
    for d in LENGTHS:
        scores = steep_rows(d, alpha, dtype)
        v = torch.randn(scores.shape).to(dtype)
        truth = exact_product(entmax.reference.entmax(scores.double(), alpha), v.double(), alpha)
        assert error(way(scores, v, alpha), truth) <= 2 * alpha


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_products(alpha: float, name: str) -> None:
    for dtype in DTYPES:
        for d in LENGTHS:
            scores = steep_rows(d, alpha, dtype)[:8]
            y = entmax.entmax(scores, alpha)
            if name.startswith("ksubset"):
                y = y.clamp(max=1 - torch.finfo(dtype).eps / 2)  # one is a cap of theirs
            v = torch.randn(y.shape).to(dtype)
            truth = exact_product(y.double(), v.double(), alpha)
            assert error(PRODUCTS[name](y, v, alpha), truth) <= 2 * alpha


@pytest.mark.parametrize("way", WAYS)
def test_two_entries(way: Product) -> None:
    scores = torch.tensor([[-0.6126329302787781, -0.27938902378082275]])
    v = torch.tensor([[1.2669767141342163, -0.2594059705734253]])
    expected = torch.tensor([[1.52666, -1.52666]])
    torch.testing.assert_close(way(scores, v, 4.0), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", PRODUCTS)
def test_ties_of_the_smallest(name: str) -> None:
    y = torch.tensor([[1e-3, 0.0, 0.4, 1e-3, 0.598], [0.2, 0.2, 0.2, 0.2, 0.2]])
    v = torch.randn(2, 5)
    for alpha in ALPHAS:
        truth = exact_product(y.double(), v.double(), alpha)
        assert error(PRODUCTS[name](y, v, alpha), truth) <= 2 * alpha


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_without_a_choice(name: str) -> None:
    y, v = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.randn(2, 3)
    for alpha in ALPHAS:
        assert (PRODUCTS[name](y, v, alpha) == 0).all()


def test_large_alphas_stay_in_range() -> None:
    y, v = torch.tensor([[1e-4, 1 - 1e-4]]), torch.tensor([[1.0, 3.0]])
    for alpha in (20.0, 100.0):
        expected = (1 - 1e-4) ** (2 - alpha) * torch.tensor([[-2.0, 2.0]])
        torch.testing.assert_close(entmax.entmax_jvp(y, v, alpha), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_order(alpha: float) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: fenchel.entmax(x, alpha=alpha), scores)
    assert gradgradcheck(lambda x: fenchel.entmax(x, alpha=alpha), scores)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", FLAT_ALPHAS)
def test_up_to_two_nothing_is_shifted(alpha: float, dtype: torch.dtype) -> None:
    y, v = entmax.entmax(torch.randn(5, 20).to(dtype), alpha), torch.randn(5, 20).to(dtype)
    s = torch.where(y > 0, torch.where(y > 0, y, 1.0) ** (2.0 - alpha), 0.0)
    plain = s * (v - (s * v).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
    number = entmax.reference.entmax_jvp(y, v, alpha)
    assert number.equal(plain)
    beside = torch.tensor([alpha, 4.0, alpha, 4.0, alpha], dtype=torch.float64)[:, None]
    assert entmax.entmax_jvp(y, v, beside)[::2].equal(entmax.entmax_jvp(y, v, alpha)[::2])
