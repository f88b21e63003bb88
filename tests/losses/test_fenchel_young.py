"""The Fenchel-Young loss of every mapping."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import gradcheck, gradgradcheck

import fenchel
from fenchel import Entmax, FenchelYoungLoss, Softmax, Sparsemax, fenchel_young_loss
from fenchel.mappings import AbstractMapping
from fenchel.mappings._protocols import HasState


def k_hot(mapping: AbstractMapping, target: torch.Tensor, classes: int) -> torch.Tensor:
    """Targets in the mapping's set: a mixture of its own solutions."""
    return mapping(torch.randn(len(target), classes, dtype=torch.float64)).detach()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_softmax_loss_is_cross_entropy(reduction: str) -> None:
    scores = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 8, -100, 3, -100, 5])
    ours = fenchel_young_loss(fenchel.Softmax(), scores, target, reduction=reduction)
    theirs = F.cross_entropy(scores, target, reduction=reduction)
    torch.testing.assert_close(ours, theirs)
    v = torch.randn_like(ours)
    gradients = [torch.autograd.grad(loss, scores, v)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)
    soft = torch.softmax(torch.randn(6, 9, dtype=torch.float64), -1)
    torch.testing.assert_close(
        fenchel_young_loss(fenchel.Softmax(), scores, soft),
        F.cross_entropy(scores, soft) + torch.special.xlogy(soft, soft).sum(-1).mean(),
    )


def test_definition_and_nonnegativity(mapping: AbstractMapping) -> None:
    scores = 2 * torch.randn(20, 6, dtype=torch.float64)
    target = torch.randint(6, (20,))
    y = k_hot(mapping, target, 6)
    loss = fenchel_young_loss(mapping, scores, y, reduction="none")
    expected = mapping.max(scores) + mapping.gamma * mapping.omega(y) - (scores * y).sum(-1)
    torch.testing.assert_close(loss, expected)
    assert (loss >= -1e-9).all()
    at_solution = fenchel_young_loss(mapping, scores, mapping(scores), reduction="none")
    assert at_solution.abs().max() < 1e-8
    if mapping.total == 1.0:
        scores[::2, 3] = -torch.inf
        target[target == 3] = 2
        hot = F.one_hot(target, 6).double()
        by_index = fenchel_young_loss(mapping, scores, target, reduction="none")
        assert (by_index >= -1e-9).all()
        by_vertex = fenchel_young_loss(mapping, scores, hot, reduction="none")
        torch.testing.assert_close(by_index, by_vertex)


def test_derivatives(mapping: AbstractMapping) -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1, -100, 0, 4])
    y = k_hot(mapping, target, 5)
    (gradient,) = torch.autograd.grad(
        fenchel_young_loss(mapping, scores, y, reduction="sum"), scores
    )
    torch.testing.assert_close(gradient, mapping(scores) - y)
    if mapping.total != 1.0:
        return

    def loss(x: torch.Tensor) -> torch.Tensor:
        return fenchel_young_loss(mapping, x, target)

    assert gradcheck(loss, (scores,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(loss, (scores,))
    (gradient,) = torch.autograd.grad(loss(scores), scores)
    assert gradient[1].eq(0).all()


@pytest.mark.parametrize("family", [fenchel.Entmax, fenchel.Normmax])
def test_gradient_in_alpha_and_gamma(family: type) -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.2], [1.5], [2.0], [2.5]], dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    soft = torch.softmax(torch.randn(4, 5, dtype=torch.float64), -1)
    for target in (torch.tensor([1, -100, 0, 4]), soft):

        def loss(x: torch.Tensor, a: torch.Tensor, g: torch.Tensor, y=target) -> torch.Tensor:
            return fenchel_young_loss(family(a, gamma=g), x, y)

        assert gradcheck(loss, (scores, alpha, gamma))
        assert gradgradcheck(loss, (scores, alpha, gamma))


def test_masked_classes() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64)
    scores[:, 4:] = -torch.inf
    scores.requires_grad_()
    short = scores[:, :4].detach().requires_grad_()
    target = torch.tensor([0, 1, 2])
    for mapping in (fenchel.Softmax(), fenchel.Entmax(1.5), fenchel.Sparsemax(), fenchel.Normmax()):
        loss = fenchel_young_loss(mapping, scores, target)
        torch.testing.assert_close(loss, fenchel_young_loss(mapping, short, target))
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient[:, 4:].eq(0).all()
        soft = torch.tensor([[0.5, 0.5, 0, 0, 0, 0]] * 3, dtype=torch.float64)
        assert fenchel_young_loss(mapping, scores, soft).isfinite()
        impossible = fenchel_young_loss(mapping, scores, torch.tensor([5, 1, 2]), reduction="none")
        assert impossible[0] == torch.inf
        assert impossible[1:].isfinite().all()


def test_all_rows_ignored_as_in_torch() -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    target = torch.full((3,), -100)
    for reduction in ("mean", "sum", "none"):
        ours = fenchel_young_loss(fenchel.Sparsemax(), scores, target, reduction=reduction)
        theirs = F.cross_entropy(scores, target, reduction=reduction)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    loss = fenchel_young_loss(fenchel.Sparsemax(), scores, target, reduction="sum")
    assert torch.autograd.grad(loss, scores)[0].eq(0).all()


def test_any_dim_and_shape() -> None:
    scores = torch.randn(2, 7, 3, 4)
    target = torch.randint(7, (2, 3, 4))
    torch.testing.assert_close(
        fenchel_young_loss(fenchel.Softmax(), scores, target, dim=1),
        F.cross_entropy(scores, target),
    )
    single = fenchel_young_loss(fenchel.Entmax(), scores[0, :, 0, 0], target[0, 0, 0])
    assert single.shape == ()
    small = fenchel_young_loss(fenchel.Entmax(), scores, target.to(torch.uint8), dim=1)
    torch.testing.assert_close(small, fenchel_young_loss(fenchel.Entmax(), scores, target, dim=1))
    other = fenchel_young_loss(fenchel.Entmax(), scores, target, dim=-3, ignore_index=3)
    kept = target != 3
    rows = fenchel_young_loss(fenchel.Entmax(), scores, target, dim=1, reduction="none")
    torch.testing.assert_close(other, rows[kept].mean())


def test_half_precision() -> None:
    scores = 5 * torch.randn(8, 100).bfloat16()
    target = torch.randint(100, (8,))
    loss = fenchel_young_loss(fenchel.Entmax(), scores, target)
    assert loss.dtype == torch.bfloat16
    torch.testing.assert_close(
        loss.float(),
        fenchel_young_loss(fenchel.Entmax(), scores.float(), target),
        rtol=1e-2,
        atol=0,
    )


def test_integer_targets_build_no_one_hot_matrix() -> None:
    saved = []
    scores = torch.randn(4, 1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fenchel_young_loss(fenchel.Sparsemax(), scores * 1, torch.tensor([1, 2, 3, 4]))
    assert sum(t.numel() >= scores.numel() for t in saved) == 1  # the solution


def test_module() -> None:
    scores, target = torch.randn(4, 6), torch.tensor([0, 5, -1, 2])
    module = FenchelYoungLoss(fenchel.Entmax(1.5), reduction="sum", ignore_index=-1)
    expected = fenchel_young_loss(
        fenchel.Entmax(1.5), scores, target, reduction="sum", ignore_index=-1
    )
    torch.testing.assert_close(module(scores, target), expected)
    assert "Entmax" in repr(module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gradient_in_place(mapping: AbstractMapping, dtype: torch.dtype) -> None:
    if mapping.total != 1.0:
        return
    leaf = torch.randn(6, 9).to(dtype).requires_grad_()
    target = torch.tensor([0, 3, -100, 8, 1, 4])
    (expected,) = torch.autograd.grad(fenchel_young_loss(mapping, 1 * leaf, target), leaf)
    scores = 1 * leaf
    loss = fenchel_young_loss(mapping, scores, target, inplace=True)
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    assert gradient.equal(expected)
    if isinstance(mapping, HasState) and mapping.gamma == 1.0:
        assert scores.equal(gradient)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, leaf)


def test_a_leaf_is_not_overwritten() -> None:
    scores, target = torch.randn(2, 3, requires_grad=True), torch.tensor([0, 1])
    for same in (scores, scores.view(2, 3), scores[:, :]):
        with pytest.raises(ValueError, match="`scores` must not be a leaf"):
            fenchel_young_loss(Sparsemax(), same, target, inplace=True)


def test_the_mapping_must_be_one() -> None:
    with pytest.raises(TypeError, match="`mapping` must be a mapping"):
        fenchel_young_loss(1.5, torch.randn(2, 3), torch.tensor([0, 1]))  # type: ignore[arg-type]


def test_a_mapping_by_name() -> None:
    scores, target = torch.randn(2, 3), torch.tensor([0, 1])
    expected = fenchel_young_loss(Sparsemax(), scores, target)
    assert fenchel_young_loss("sparsemax", scores, target).equal(expected)
    assert FenchelYoungLoss("sparsemax")(scores, target).equal(expected)
    with pytest.raises(ValueError, match="the name of a mapping must be one of entmax, fusedmax"):
        FenchelYoungLoss("sparsmax")


def test_the_module_checks_its_options_at_once() -> None:
    with pytest.raises(ValueError, match="`reduction` must be one of none, mean, sum, got 'avg'"):
        FenchelYoungLoss("sparsemax", reduction="avg")
    with pytest.raises(TypeError, match="`dim` must be an int, got float"):
        FenchelYoungLoss("sparsemax", dim=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`ignore_index` must be an int, got str; None ignores no"):
        FenchelYoungLoss("sparsemax", ignore_index="pad")  # type: ignore[arg-type]


def test_no_index_is_ignored() -> None:
    scores, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 3, 1])
    for reduction in ("none", "mean", "sum"):
        none = fenchel_young_loss("entmax", scores, target, reduction=reduction, ignore_index=None)
        torch.testing.assert_close(
            none, fenchel_young_loss("entmax", scores, target, reduction=reduction)
        )
    for bad in (-100, -(2**63)):
        target = torch.tensor([0, bad, 1])
        with pytest.raises(ValueError, match=rf"`target` must be in \[0, 3\], got {bad}"):
            fenchel_young_loss("entmax", scores, target, ignore_index=None)


def test_what_a_mapping_learns_is_the_modules() -> None:
    scores, target = torch.randn(4, 6), torch.tensor([0, 5, 1, 2])
    module = FenchelYoungLoss(Entmax(torch.nn.Parameter(torch.tensor(1.5))))
    assert list(module.state_dict()) == ["mapping.alpha"]
    (alpha,) = module.parameters()
    module(scores, target).backward()
    expected = torch.tensor(1.5, requires_grad=True)
    fenchel_young_loss(Entmax(expected), scores, target).backward()
    torch.testing.assert_close(alpha.grad, expected.grad)
    shared = FenchelYoungLoss(module.mapping)
    assert next(shared.parameters()) is alpha


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_added_up_in_float32(
    mapping: AbstractMapping, dtype: torch.dtype
) -> None:
    scores = 30 * torch.randn(4000, 7).to(dtype)
    target = torch.randint(7, (4000,))
    solution = mapping(torch.randn(1, 7)).to(dtype).expand_as(scores)
    if mapping.name == "general":
        scores, target, solution = scores[:50], target[:50], solution[:50]
    for y in (target, solution) if mapping.total == 1.0 else (solution,):
        loss = fenchel_young_loss(mapping, scores, y)
        wide = fenchel_young_loss(mapping, scores.float(), y.float() if y is solution else y)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss, wide.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast_gives_the_type_that_cross_entropy_gives(
    mapping: AbstractMapping, dtype: torch.dtype
) -> None:
    scores = torch.randn(3, 8).to(dtype).requires_grad_()
    target, soft = torch.tensor([0, 1, 2]), mapping(torch.randn(3, 8)).to(dtype)
    for y in (target, soft) if mapping.total == 1.0 else (soft,):
        for reduction in ("none", "mean", "sum"):
            with torch.autocast("cpu", dtype=dtype):
                loss = fenchel_young_loss(mapping, scores, y, reduction=reduction)
                assert loss.dtype == F.cross_entropy(scores, target).dtype == torch.float32
            (gradient,) = torch.autograd.grad(loss.sum(), scores)
            assert gradient.dtype == dtype


def test_ignored_rows_have_no_gradient_whatever_they_hold() -> None:
    for mapping in (Softmax(), Sparsemax(), Entmax(1.3)):
        scores = torch.randn(3, 4)
        scores[1, 2] = torch.nan
        scores.requires_grad_()
        loss = fenchel_young_loss(mapping, scores, torch.tensor([0, -100, 1]))
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient[1].eq(0).all()
        assert gradient.isfinite().all()
