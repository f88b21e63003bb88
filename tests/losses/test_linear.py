"""The linear layer fused with its loss against the two of them one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fenchel import Entmax, Fusedmax, Ksubset, Softmax, Sparsemax, fenchel_young_loss
from fenchel import linear_fenchel_young_loss as linear_loss
from fenchel.mappings import AbstractMapping

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES, WIDTH = 300, 16


def problem(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list:
    """Hidden, weight, bias and target; the larger the scale, the sparser the solutions."""
    sizes = ((*shape, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    inputs = [torch.randn(size, dtype=torch.float64, device=DEVICE) for size in sizes]
    inputs[0] *= scale
    target = torch.randint(CLASSES, shape, device=DEVICE)
    return [*(value.to(dtype).requires_grad_() for value in inputs), target]


def both(mapping: AbstractMapping, inputs: list, **options: object) -> tuple:
    hidden, weight, bias, target = inputs
    reduction = options.get("reduction", "mean")
    fused = linear_loss(mapping, hidden, weight, target, bias, **options)
    scores = hidden @ weight.T + bias
    return fused, fenchel_young_loss(mapping, scores, target, reduction=reduction)


@pytest.mark.parametrize("scale", [3.0, 0.01], ids=["sparse", "dense"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradients(mapping: AbstractMapping, reduction: str, scale: float) -> None:
    if mapping.total != 1.0 or mapping.name == "general":
        return
    inputs = problem(11, scale=scale)
    inputs[3][4] = -100
    fused, plain = both(mapping, inputs, reduction=reduction, chunk=4)
    torch.testing.assert_close(fused, plain)
    v = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, inputs[:3], v)
    got = torch.autograd.grad(fused, inputs[:3], v, retain_graph=True)
    torch.testing.assert_close(got, expected)
    again = torch.autograd.grad(fused, inputs[:3], 2 * v)
    torch.testing.assert_close(again, tuple(2 * value for value in expected))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_other_derivatives(reduction: str, smoothing: float) -> None:
    """Second ones, forward mode, torch.func and batches of cotangents."""
    mapping = Entmax(1.3, gamma=0.5)
    hidden, weight, bias, target = problem(5)
    target[2] = -100
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def fused(hidden: torch.Tensor) -> torch.Tensor:
        return linear_loss(mapping, hidden, weight, target, bias, **options)

    def plain(hidden: torch.Tensor) -> torch.Tensor:
        return fenchel_young_loss(mapping, hidden @ weight.T + bias, target, **options)

    results = []
    for loss in (fused, plain):
        first = torch.autograd.grad(loss(hidden).sin().sum(), [hidden, weight], create_graph=True)
        second = torch.autograd.grad(sum(g.pow(3).sum() for g in first), [hidden, weight, bias])
        losses = loss(hidden).reshape(-1)
        eye = torch.eye(len(losses), dtype=losses.dtype, device=DEVICE)
        batched = torch.autograd.grad(losses, [hidden, weight], eye, is_grads_batched=True)
        transformed = (
            *torch.func.jvp(loss, (hidden,), (torch.ones_like(hidden),)),
            torch.func.hessian(lambda x, loss=loss: loss(x).sum())(hidden),
            torch.func.vmap(loss)(torch.stack([hidden, 2 * hidden])),
        )
        results.append([*second, *batched, *transformed])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, None])
def test_any_chunk_and_shape(chunk: int | None) -> None:
    inputs = problem(2, 5, scale=3.0)
    with torch.no_grad():
        inputs[0][0] *= 0.001  # dense in some chunks, sparse in others
    for reduction in ("mean", "none"):
        fused, plain = both(Entmax(1.5), inputs, reduction=reduction, chunk=chunk)
        torch.testing.assert_close(fused, plain)
        v = torch.randn_like(plain)
        got = torch.autograd.grad(fused, inputs[:3], v)
        torch.testing.assert_close(got, torch.autograd.grad(plain, inputs[:3], v))


def test_frozen_inputs() -> None:
    hidden, weight, bias, target = problem(9, scale=3.0)
    loss = fenchel_young_loss(Sparsemax(), hidden @ weight.T + bias, target)
    expected = dict(zip("hwb", torch.autograd.grad(loss, (hidden, weight, bias)), strict=True))
    for wanted in ("h", "w", "b", "hb", "wb"):
        named = zip("hwb", (hidden, weight, bias), strict=True)
        inputs = [value if key in wanted else value.detach() for key, value in named]
        fused = linear_loss(Sparsemax(), inputs[0], inputs[1], target, inputs[2])
        leaves = [value for value in inputs if value.requires_grad]
        for key, gradient in zip(wanted, torch.autograd.grad(fused, leaves), strict=True):
            torch.testing.assert_close(gradient, expected[key])
    assert not linear_loss(Sparsemax(), hidden.detach(), weight.detach(), target).requires_grad


def test_tied_accumulated_and_checkpointed() -> None:
    _, weight, _, target = problem(8, scale=3.0)
    words = torch.randint(CLASSES, (8,), device=DEVICE)

    def step(loss: object) -> torch.Tensor:
        weight.grad = None
        for _ in range(2):
            hidden = 3 * weight[words]
            loss(hidden).backward()  # type: ignore[operator]
        assert weight.grad is not None
        return weight.grad

    expected = step(lambda hidden: fenchel_young_loss(Entmax(1.5), hidden @ weight.T, target))
    fused = lambda hidden: linear_loss(Entmax(1.5), hidden, weight, target, chunk=3)  # noqa: E731
    torch.testing.assert_close(step(fused), expected)
    kept = lambda hidden: checkpoint(fused, hidden, use_reentrant=False)  # noqa: E731
    torch.testing.assert_close(step(kept), expected)


def test_autocast_computes_in_its_type() -> None:
    hidden, weight, bias, target = problem(8, scale=3.0, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        fused = linear_loss(Entmax(1.5), hidden, weight, target, bias)
    assert fused.dtype == torch.float32  # as F.cross_entropy
    halves = [value.detach().bfloat16().requires_grad_() for value in (hidden, weight, bias)]
    plain = linear_loss(Entmax(1.5), halves[0], halves[1], target, halves[2])
    torch.testing.assert_close(fused.to(plain.dtype), plain)
    got = torch.autograd.grad(fused, (hidden, weight, bias))
    expected = torch.autograd.grad(plain, halves)
    for gradient, half in zip(got, expected, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, half.float())


@pytest.fixture
def _exact_products() -> Iterator[None]:
    """On a GPU the products of few rows would else be summed in half precision."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    settings.allow_bf16_reduced_precision_reduction = False
    yield
    settings.allow_bf16_reduced_precision_reduction = before


@pytest.mark.usefixtures("_exact_products")
@pytest.mark.parametrize("scale", [3.0, 0.01], ids=["sparse", "dense"])
def test_half_precision_errs_no_more_than_dense(scale: float) -> None:
    exact = problem(64, scale=scale)
    loss = fenchel_young_loss(Entmax(1.5), exact[0] @ exact[1].T, exact[3])
    truth = torch.autograd.grad(loss, exact[:2])
    half = [value.detach().bfloat16().requires_grad_() for value in exact[:2]]
    dense = fenchel_young_loss(Entmax(1.5), half[0] @ half[1].T, exact[3])
    fused = linear_loss(Entmax(1.5), half[0], half[1], exact[3], chunk=16)
    both_ways = [torch.autograd.grad(loss, half) for loss in (fused, dense)]
    for ours, theirs, gradient in zip(*both_ways, truth, strict=True):
        assert (ours - gradient).norm() <= 1.1 * (theirs - gradient).norm()


def test_edges() -> None:
    hidden, weight, _, target = problem(4)
    none = torch.full_like(target, -100)
    nothing = linear_loss(Entmax(1.5), hidden, weight, none, reduction="sum")
    (gradient,) = torch.autograd.grad(nothing, weight)
    assert nothing == 0
    assert gradient.eq(0).all()
    empty = linear_loss(Entmax(1.5), hidden[:0], weight, target[:0], reduction="sum")
    assert empty == 0
    assert torch.autograd.grad(empty, weight)[0].eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nan_stays_in_its_row(mapping: AbstractMapping, reduction: str) -> None:
    if mapping.total != 1.0 or mapping.name == "general":
        return
    hidden, weight, bias, target = problem(4, scale=3.0)
    broken = hidden.detach().clone()
    broken[1] = torch.nan
    broken.requires_grad_()
    loss = linear_loss(mapping, broken, weight, target, bias, reduction="none")
    assert loss.isnan().tolist() == [False, True, False, False]
    few = linear_loss(mapping, broken, weight[:7], target % 7, reduction="none")  # all in support
    for losses in (loss, few):
        (gradient,) = torch.autograd.grad(losses, broken, torch.ones_like(losses))
        assert gradient.isnan().any(1).tolist() == [False, True, False, False]
    target[1] = -100
    loss = linear_loss(mapping, broken, weight, target, bias, reduction=reduction).sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (broken, weight, bias)))


def test_deleted_classes() -> None:
    hidden, weight, bias, target = problem(4, scale=3.0)
    with torch.no_grad():
        bias[3] = -torch.inf
    target = torch.tensor([0, 1, 2, 4], device=DEVICE)
    fused, plain = both(Entmax(1.5), [hidden, weight, bias, target])
    torch.testing.assert_close(fused, plain)
    got = torch.autograd.grad(fused, (hidden, weight))
    torch.testing.assert_close(got, torch.autograd.grad(plain, (hidden, weight)))
    deleted = linear_loss(Entmax(1.5), hidden, weight, torch.full_like(target, 3), bias)
    assert deleted == torch.inf


def test_no_row_and_no_gradient() -> None:
    hidden, weight, _, target = problem(4)
    loss = linear_loss(Softmax(), hidden, weight, torch.full_like(target, -100))
    assert loss.isnan()
    assert all(value.eq(0).all() for value in torch.autograd.grad(loss, (hidden, weight)))
    with torch.no_grad():
        value = linear_loss(Entmax(1.5), 0.01 * hidden, weight, target)
    assert not value.requires_grad


def test_bad_input() -> None:
    hidden, weight, bias, target = problem(4)
    with pytest.raises(ValueError, match="`weight` must have shape"):
        linear_loss(Softmax(), hidden, weight[:, :3], target)
    for nothing in (weight[:0], weight[:, :0]):
        with pytest.raises(ValueError, match="`weight` must have shape"):
            linear_loss(Softmax(), hidden[:, : nothing.shape[1]], nothing, target)
    with pytest.raises(ValueError, match="`weight` must be on the device of `hidden`"):
        linear_loss(Softmax(), hidden, weight.to("meta"), target)
    with pytest.raises(TypeError, match="`mapping` must be a mapping"):
        linear_loss(1.5, hidden, weight, target)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`bias` must have shape"):
        linear_loss(Softmax(), hidden, weight, target, bias[:3])
    with pytest.raises(TypeError, match="`weight` must have the type of `hidden`"):
        linear_loss(Softmax(), hidden, weight.float(), target)
    with pytest.raises(ValueError, match="`chunk` must be a positive int"):
        linear_loss(Softmax(), hidden, weight, target, chunk=0)
    with pytest.raises(ValueError, match="`mapping` must sum to one"):
        linear_loss(Ksubset(2), hidden, weight, target)
    with pytest.raises(ValueError, match="`alpha` of the mapping must be a number"):
        linear_loss(Entmax(torch.tensor(1.5)), hidden, weight, target)
    with pytest.raises(TypeError, match="`target` must hold class indices"):
        linear_loss(Softmax(), hidden, weight, torch.rand(4, CLASSES, device=DEVICE))
    if DEVICE == "cpu":  # elsewhere the values would have to be waited for
        with pytest.raises(ValueError, match="`target` must be in"):
            linear_loss(Fusedmax(), hidden, weight, target + CLASSES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gamma_loses_no_difference(dtype: torch.dtype) -> None:
    hidden = torch.randn(6, 4).to(dtype)
    weight = (300 + torch.randn(9, 4)).to(dtype)
    target = torch.randint(9, (6,))
    for mapping in (Entmax(1.5, gamma=0.05), Fusedmax(0.1, gamma=0.05)):
        scores = (hidden @ weight.T).double()
        exact = fenchel_young_loss(mapping, scores, target)
        loss = linear_loss(mapping, hidden, weight, target)
        torch.testing.assert_close(loss.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_no_index_is_ignored() -> None:
    hidden, weight, target = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 4])
    loss = linear_loss("sparsemax", hidden, weight, target, ignore_index=None)
    torch.testing.assert_close(loss, linear_loss(Sparsemax(), hidden, weight, target))


def test_losses_are_never_negative() -> None:
    weight = torch.tensor([[200.0], [200.1], [198.2]])
    for mapping in (Softmax(), Entmax(1.5), Sparsemax(), Fusedmax(0.1)):
        loss = linear_loss(mapping, torch.ones(3, 1), weight, torch.arange(3), reduction="none")
        assert (loss >= 0).all()
