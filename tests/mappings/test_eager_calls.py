"""Eager calls, which skip PyTorch's dispatcher, against the same calls through it."""

from __future__ import annotations

import pytest
import torch
from rows import hard_rows
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import fenchel
from fenchel import Entmax, Ksubset, Normmax, Softmax, Sparsemax
from fenchel._transforms import is_eager
from fenchel.mappings import AbstractMapping
from fenchel.ops import _native, entmax


class Dispatched(TorchDispatchMode):
    """Sees every operator, and changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def with_gradient(mapping: AbstractMapping, scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.detach().clone().requires_grad_()
    y = mapping(scores)
    return y.detach(), torch.autograd.grad(y, scores, v)[0]


def test_a_mode_is_not_eager() -> None:
    scores = torch.randn(3)
    assert is_eager(scores)
    with Dispatched():
        assert not is_eager(scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eager_calls_are_the_dispatched_ones(mapping: AbstractMapping, dtype: torch.dtype) -> None:
    scores, v = torch.randn(7, 5, dtype=dtype), torch.randn(7, 5, dtype=dtype)
    scores[0, 1:3] = -torch.inf
    for rows in (scores, scores.t().contiguous().t(), scores[::2]):
        found = with_gradient(mapping, rows, v[: len(rows)])
        with Dispatched():
            expected = with_gradient(mapping, rows, v[: len(rows)])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.3), Entmax(3.0)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore_index", [None, -100, 2])
def test_losses_of_classes(
    mapping: AbstractMapping, reduction: str, ignore_index: int | None
) -> None:
    target = torch.tensor([0, 2, 4, 2, 1])
    if ignore_index == -100:
        target[3] = -100
    scores = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)

    def loss(scores: Tensor, reduction: str = reduction) -> Tensor:
        return mapping.loss(scores, target, reduction=reduction, ignore_index=ignore_index)

    each = loss(scores, "none")
    count = 5 if ignore_index is None else int((target != ignore_index).sum())
    expected = each.sum() / (count if reduction == "mean" else 1)
    found = loss(scores)
    torch.testing.assert_close(found, expected)
    gradient, truth = (torch.autograd.grad(x, scores)[0] for x in (found, expected))
    torch.testing.assert_close(gradient, truth)
    assert gradcheck(loss, (scores,))
    assert gradgradcheck(loss, (scores,))


def test_losses_of_classes_at_the_edges() -> None:
    mapping, scores = Entmax(1.5), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"`target` must be in \[0, 3\] or equal"):
        mapping.loss(scores, torch.tensor([0, 4, 1]))
    with pytest.raises(ValueError, match=r"`target` must be in \[0, 3\], got -100"):
        mapping.loss(scores, torch.tensor([0, -100, 1]), ignore_index=None)
    assert mapping.loss(scores, torch.full((3,), -100)).isnan()
    assert mapping.loss(scores, torch.full((3,), -100), reduction="sum") == 0
    scores[1] = torch.nan
    target = torch.tensor([0, -100, 1])
    leaf = scores.clone().requires_grad_()
    mapping.loss(leaf, target).backward()
    assert leaf.grad is not None
    assert leaf.grad[1].eq(0).all()  # what is ignored may be anything
    assert leaf.grad.isfinite().all()
    assert mapping.loss(scores, torch.tensor([0, 1, 1])).isnan()
    scores = torch.tensor([[1.0, -torch.inf], [0.0, 0.0]])
    assert mapping.loss(scores, torch.tensor([1, 0])) == torch.inf


@pytest.mark.parametrize("alpha", [0.3, 0.999, 1.0, 1.0001, 1.5, 2.0, 3.0, 8.0])
def test_gradient_in_alpha(alpha: float) -> None:
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    for shape in ((), (4, 1)):
        given = torch.full(shape, alpha, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda x, a: fenchel.entmax(x, alpha=a), (scores, given))
    y = entmax.reference.entmax(hard_rows(40), alpha)
    v = torch.randn_like(y)
    found = entmax.entmax_parameter_vjp(y, v, alpha)
    expected = entmax.reference.entmax_parameter_vjp(y, v, alpha)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(_native.LIBRARY is None, reason="the native library is switched off")
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 4.0])
def test_kernel_of_the_loss(alpha: float) -> None:
    scores = hard_rows(30)
    target = torch.arange(len(scores)) % 30
    target[3], target[4] = -7, 30
    losses, state = entmax.entmax_loss(scores, target, -7, alpha)
    expected, _ = entmax.reference.entmax_loss(scores, target, -7, alpha)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-14, equal_nan=True)
    assert losses[4].isnan()
    ones = torch.ones(len(scores), 1, dtype=torch.float64)
    gradient = entmax.entmax_gradient(scores, state, target.unsqueeze(-1), ones, alpha)
    assert gradient[3].eq(0).all()


def test_changed_results_are_noticed() -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    y = fenchel.entmax(scores)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_a_tensor_option_holds_is_checked_in_the_call() -> None:
    scores = torch.randn(3, 4)
    bad = torch.tensor([[1.5], [-1.0], [2.0]])
    with pytest.raises(ValueError, match="`alpha` must be"):
        fenchel.entmax(scores, alpha=bad)
    with pytest.raises(ValueError, match="`alpha` must be"):
        fenchel.normmax(scores, alpha=torch.tensor(0.5))
    with pytest.raises(ValueError, match="`k` must be"):
        fenchel.ksubset(scores, k=torch.tensor(torch.nan))
    with pytest.raises(ValueError, match="`gamma` must be"):
        fenchel.entmax(scores, gamma=torch.tensor(0.0))
    learned = Entmax(torch.nn.Parameter(torch.tensor(1.5)))
    learned.alpha.data.fill_(-1.0)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="`alpha` must be"):
        learned(scores)


def test_numbers_are_kept() -> None:
    assert Entmax.of(alpha=1.25, gamma=1.0) is Entmax.of(alpha=1.25, gamma=1.0)
    assert Normmax.of(alpha=2.0, gamma=1.0) is not Normmax.of(alpha=2.0, gamma=2.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="`alpha`"):
            fenchel.entmax(torch.randn(3), alpha=-1.0)
    assert Ksubset.of(k=2, alpha=2.0, gamma=1.0).k == 2


def test_tensors_without_memory_are_errors() -> None:
    for call in (fenchel.entmax, fenchel.fusedmax, fenchel.ksubset):
        freed = torch.randn(4, 6)
        freed.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=r"has no memory|not allocated"):
            call(freed)
    scores = torch.randn(4, 6, requires_grad=True)
    moved = scores * 1
    loss = Entmax(1.5).loss(moved, torch.arange(4))
    moved.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"has no memory|not allocated"):
        loss.backward()


def test_zero_tensors_and_negative_views() -> None:
    zeros = torch._efficientzerotensor((4, 6))
    torch.testing.assert_close(fenchel.entmax(zeros), torch.full((4, 6), 1 / 6))
    scores = torch.randn(4, 6)
    torch.testing.assert_close(fenchel.entmax(torch._neg_view(scores)), fenchel.entmax(-scores))


def test_options_beyond_the_range_of_float32() -> None:
    scores = torch.tensor([[1.0, 0.5, -2.0]])
    one_hot = torch.tensor([[1.0, 0.0, 0.0]])
    for alpha in (4e38, 1e300, torch.tensor(1e300, dtype=torch.float64)):
        torch.testing.assert_close(fenchel.entmax(scores, alpha=alpha), one_hot)
    torch.testing.assert_close(fenchel.softmax(scores, gamma=1e-46), one_hot)


def test_losses_of_meta_tensors() -> None:
    scores, target = torch.empty(3, 4, device="meta"), torch.zeros(3, device="meta").long()
    assert Entmax(1.5).loss(scores, target).device.type == "meta"


def test_a_changed_alpha_is_noticed_in_a_loss() -> None:
    alpha = torch.full((3, 1), 1.5)
    scores = torch.randn(3, 4, requires_grad=True)
    loss = Entmax(alpha).loss(scores, torch.arange(3))
    alpha.fill_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
