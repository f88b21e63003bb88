"""Label smoothing of the linear loss against that of the scores."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fenchel import Entmax, Fusedmax, Softmax, Sparsemax, fenchel_young_loss
from fenchel import linear_fenchel_young_loss as linear_loss
from fenchel.mappings import AbstractMapping

MAPPINGS = [Softmax(), Sparsemax(gamma=0.3), Entmax(1.5), Entmax(1.3, gamma=2.0), Entmax(0.5)]
CLASSES = 11


def problem(
    has_bias: bool, dtype: torch.dtype = torch.float64
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Hidden, weight and perhaps bias; and a target of which one row is ignored."""
    torch.manual_seed(0)
    sizes = [(7, 5), (CLASSES, 5), (CLASSES,)][: 3 if has_bias else 2]
    inputs = [torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]
    target = torch.randint(CLASSES, (7,))
    target[2] = -100
    return inputs, target


def scores_of(inputs: list[torch.Tensor]) -> torch.Tensor:
    return functional.linear(*inputs)


def fused(mapping: AbstractMapping, inputs: list[torch.Tensor], target, **options):
    hidden, weight, *bias = inputs
    return linear_loss(mapping, hidden, weight, target, *bias, **options)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_losses_and_gradients_are_those_of_the_scores(mapping, reduction, has_bias):
    inputs, target = problem(has_bias)
    options = {"reduction": reduction, "label_smoothing": 0.1}
    found = fused(mapping, inputs, target, chunk=3, **options)
    expected = fenchel_young_loss(mapping, scores_of(inputs), target, **options)
    torch.testing.assert_close(found, expected)
    v = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, v), torch.autograd.grad(expected, inputs, v)
    )


def test_deleted_classes_have_no_share():
    inputs, target = problem(has_bias=True)
    with torch.no_grad():
        inputs[2][[3, 8]] = -torch.inf
    target[4:] = torch.tensor([3, 0, 1])
    options = {"reduction": "none", "label_smoothing": 0.2}
    found = fused(Entmax(1.5), inputs, target, **options)
    expected = fenchel_young_loss(Entmax(1.5), scores_of(inputs), target, **options)
    torch.testing.assert_close(found, expected)
    assert found.isposinf().tolist() == (target == 3).tolist()


def test_half_precision_rounds_once():
    inputs, target = problem(has_bias=True, dtype=torch.bfloat16)
    found = fused(Softmax(), inputs, target, label_smoothing=0.1)
    wide = [value.detach().double() for value in inputs]
    expected = fenchel_young_loss(Softmax(), scores_of(wide), target, label_smoothing=0.1)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=0.0)


def test_all_rows_ignored_and_no_rows():
    inputs, target = problem(has_bias=False)
    assert fused("softmax", inputs, torch.full_like(target, -100), label_smoothing=0.1).isnan()
    rows = [inputs[0][:0], inputs[1]]
    found = fused("softmax", rows, target[:0], label_smoothing=0.1, reduction="none")
    assert found.shape == (0,)


@pytest.mark.parametrize(
    ("mapping", "smoothing", "error", "match"),
    [
        (Softmax(), 1.0, ValueError, "`label_smoothing` must be less than 1 here, got 1."),
        (Softmax(), -0.1, ValueError, "`label_smoothing` must be at least 0"),
        (Softmax(), "0.1", TypeError, "`label_smoothing` must be a number, got str."),
        (Fusedmax(), 0.1, ValueError, "must be 0 for fusedmax here, .* use `fenchel_young_loss`"),
    ],
)
def test_bad_smoothing(mapping, smoothing, error, match):
    inputs, target = problem(has_bias=False)
    with pytest.raises(error, match=match):
        fused(mapping, inputs, target, label_smoothing=smoothing)
