"""Label smoothing: the loss of smoothed targets, without a tensor of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import gradcheck, gradgradcheck

import fenchel
from fenchel import Entmax, FenchelYoungLoss, Softmax, Sparsemax, fenchel_young_loss
from fenchel.mappings import AbstractMapping

TARGET = torch.tensor([0, 4, -100, 2])


def smoothed(target: torch.Tensor, classes: int, smoothing: float) -> torch.Tensor:
    hot = F.one_hot(target, classes).double()
    return (1 - smoothing) * hot + smoothing / classes


@pytest.mark.parametrize("smoothing", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_softmax_has_the_smoothed_cross_entropy(smoothing: float, reduction: str) -> None:
    """Less the entropy of the target, which no score changes."""
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    ours = fenchel_young_loss(Softmax(), scores, TARGET, **options)
    theirs = F.cross_entropy(scores, TARGET, **options)
    q = smoothed(torch.tensor(0), 5, smoothing)
    entropy = -torch.special.xlogy(q, q).sum()
    counts = {"none": (TARGET != -100).double(), "mean": 1, "sum": 3}
    torch.testing.assert_close(ours, theirs - counts[reduction] * entropy)
    v = torch.randn_like(ours)
    gradients = [torch.autograd.grad(loss, scores, v)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("smoothing", [1e-3, 0.3, 1.0])
def test_indices_have_the_loss_of_distributions(mapping: AbstractMapping, smoothing: float) -> None:
    if mapping.total != 1.0:
        return
    scores = (2 * torch.randn(2, 5, 4, dtype=torch.float64)).requires_grad_()
    target = torch.tensor([[0, 4, 1, 1], [2, 3, 0, 4]])
    given = {"dim": 1, "reduction": "none"}
    ours = fenchel_young_loss(mapping, scores, target, **given, label_smoothing=smoothing)
    q = smoothed(target, 5, smoothing).movedim(-1, 1)
    dense = fenchel_young_loss(mapping, scores, q, **given)
    torch.testing.assert_close(ours, dense)
    vertices = F.one_hot(target, 5).double().movedim(-1, 1)
    mixed = fenchel_young_loss(mapping, scores, vertices, **given, label_smoothing=smoothing)
    torch.testing.assert_close(mixed, dense)
    gradients = [torch.autograd.grad(loss.sum(), scores)[0] for loss in (ours, dense, mixed)]
    torch.testing.assert_close(gradients[0], mapping(scores, 1) - q)
    torch.testing.assert_close(gradients[1:], [gradients[0]] * 2)


def test_double_precision_is_kept(mapping: AbstractMapping) -> None:
    """What a target lacks to one would count times the offset of the scores."""
    if mapping.total != 1.0:
        return
    scores = 1e10 + torch.randn(3, 7, dtype=torch.float64)
    near = fenchel_young_loss(mapping, scores - 1e10, TARGET[:2].repeat(2)[:3], label_smoothing=0.1)
    far = fenchel_young_loss(mapping, scores, TARGET[:2].repeat(2)[:3], label_smoothing=0.1)
    torch.testing.assert_close(far, near, rtol=1e-5, atol=1e-5)


def test_derivatives(mapping: AbstractMapping) -> None:
    if mapping.total != 1.0:
        return
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return fenchel_young_loss(mapping, x, TARGET, label_smoothing=0.2)

    assert gradcheck(loss, (scores,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(loss, (scores,))
    assert torch.autograd.grad(loss(scores), scores)[0][2].eq(0).all()


def test_derivatives_in_alpha_and_gamma() -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.2], [1.5], [2.0], [2.5]], dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return fenchel_young_loss(Entmax(a, gamma=g), x, TARGET, label_smoothing=0.2)

    assert gradcheck(loss, (scores, alpha, gamma))


def test_deleted_classes_have_no_share(mapping: AbstractMapping) -> None:
    if mapping.total != 1.0 or mapping.name == "general":  # whose Ω may know the entries' places
        return
    scores = torch.randn(3, 6, dtype=torch.float64)
    scores[:, [1, 4]] = -torch.inf
    scores.requires_grad_()
    short = scores[:, [0, 2, 3, 5]].detach().requires_grad_()
    loss = fenchel_young_loss(mapping, scores, torch.tensor([0, 2, 5]), label_smoothing=0.3)
    expected = fenchel_young_loss(mapping, short, torch.tensor([0, 1, 3]), label_smoothing=0.3)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert gradient[:, [1, 4]].eq(0).all()
    torch.testing.assert_close(gradient[:, [0, 2, 3, 5]], torch.autograd.grad(expected, short)[0])
    deleted = fenchel_young_loss(
        mapping, scores, torch.tensor([0, 4, 5]), reduction="none", label_smoothing=0.3
    )
    assert deleted.isinf().tolist() == [False, True, False]


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.5)], ids=str)
def test_no_tensor_of_distributions(mapping: AbstractMapping) -> None:
    """Beside the scores themselves, backward keeps a mask of the deleted ones."""
    saved = []
    scores = torch.randn(4, 1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fenchel_young_loss(mapping, scores * 1, TARGET, label_smoothing=0.1)
    large = {(t.data_ptr(), str(t.dtype)) for t in saved if t.numel() >= scores.numel()}
    assert sorted(dtype for _, dtype in large) == ["torch.bool", "torch.float32"]


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.5)], ids=str)
def test_large_scores_and_half_precision(mapping: AbstractMapping) -> None:
    scores = torch.randn(4, 50, dtype=torch.float64)
    exact = fenchel_young_loss(mapping, scores, TARGET, label_smoothing=0.1)
    far = fenchel_young_loss(mapping, (scores + 2**10).float(), TARGET, label_smoothing=0.1)
    torch.testing.assert_close(far.double(), exact, rtol=0, atol=2e-4)
    half = scores.bfloat16()
    loss = fenchel_young_loss(mapping, half, TARGET, label_smoothing=0.1)
    assert loss.dtype == torch.bfloat16
    wide = fenchel_young_loss(mapping, half.float(), TARGET, label_smoothing=0.1)
    assert loss == wide.bfloat16()


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.5, gamma=0.5)], ids=str)
def test_in_place_compiled_and_vmapped(mapping: AbstractMapping) -> None:
    leaf = torch.randn(4, 5, requires_grad=True)

    def loss(x: torch.Tensor, target: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return fenchel_young_loss(mapping, 1 * x, target, inplace=inplace, label_smoothing=0.2)

    expected = loss(leaf, TARGET)
    (gradient,) = torch.autograd.grad(expected, leaf)
    (written,) = torch.autograd.grad(loss(leaf, TARGET, True), leaf)
    torch.testing.assert_close(written, gradient)
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(leaf, TARGET)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(torch.autograd.grad(compiled, leaf)[0], gradient)
    rows = torch.vmap(loss)(leaf[[0, 1, 3]], TARGET[[0, 1, 3]])
    torch.testing.assert_close(rows.mean(), expected)


def test_ignored_rows_may_hold_anything() -> None:
    scores = torch.randn(4, 5)
    scores[2] = torch.nan
    scores.requires_grad_()
    loss = fenchel_young_loss(Entmax(1.5), scores, TARGET, label_smoothing=0.2)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, scores)[0][2].eq(0).all()


def test_smoothing_penalizes_zeros() -> None:
    """Beyond its margin a row has no loss without smoothing, and always one with it."""
    scores = torch.tensor([[9.0, 0.0, 0.0]])
    target = torch.tensor([0])
    assert fenchel_young_loss(Sparsemax(), scores, target) == 0
    assert fenchel_young_loss(Sparsemax(), scores, target, label_smoothing=0.1) > 0


def test_the_module_and_its_checks() -> None:
    scores = torch.randn(4, 5)
    module = FenchelYoungLoss("entmax", label_smoothing=0.2)
    expected = fenchel_young_loss("entmax", scores, TARGET, label_smoothing=0.2)
    assert module(scores, TARGET).equal(expected)
    assert "label_smoothing=0.2" in repr(module)
    with pytest.raises(ValueError, match="`label_smoothing` must be at least 0 and at most 1, got"):
        FenchelYoungLoss("entmax", label_smoothing=1.5)
    with pytest.raises(TypeError, match="`label_smoothing` must be a number, got str"):
        fenchel_young_loss("entmax", scores, TARGET, label_smoothing="0.1")  # type: ignore[arg-type]
    y = fenchel.ksubset(scores, k=2)
    with pytest.raises(ValueError, match="`label_smoothing` must be 0 for ksubset, whose sol"):
        fenchel_young_loss(fenchel.Ksubset(2), scores, y, label_smoothing=0.1)


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
@pytest.mark.parametrize(
    "mapping", [Softmax(), Sparsemax(), Entmax(1.5), Entmax(3.0, gamma=2.0), fenchel.Fusedmax()]
)
def test_a_deleted_target(mapping: AbstractMapping, smoothing: float) -> None:
    """All of the target's share is lost, and with ε = 1 it has none."""
    scores = torch.tensor([[0.3, -torch.inf, 0.1, -0.4]], dtype=torch.float64, requires_grad=True)
    loss = mapping.loss(scores, torch.tensor([1]), label_smoothing=smoothing)
    (gradient,) = torch.autograd.grad(loss, scores)
    q = torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=torch.float64) * smoothing / 3
    q[0, 1] = 1 - smoothing
    torch.testing.assert_close(gradient, mapping(scores.detach()) - q)
    if smoothing < 1:
        assert loss == torch.inf
    else:
        torch.testing.assert_close(loss, mapping.loss(scores, q))
