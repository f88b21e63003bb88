"""The loop over time of a bidirectional layer, against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fenchel.seq2seq.models._bidirectional import bidirectional


def of_torch(layer: nn.LSTM, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outputs, (h, c) = layer(x)
    return outputs, h[1], c


@pytest.mark.parametrize(("batch", "steps"), [(3, 5), (1, 4), (2, 1)])
def test_values_and_gradients(batch: int, steps: int) -> None:
    torch.manual_seed(batch + steps)
    layer = nn.LSTM(4, 3, batch_first=True, bidirectional=True).double()
    x = torch.randn(batch, steps, 4, dtype=torch.float64, requires_grad=True)
    ours, theirs = bidirectional(layer, x), of_torch(layer, x)
    torch.testing.assert_close(ours, theirs)
    factors = [torch.randn_like(each) for each in theirs]
    found, truth = (
        torch.autograd.grad(each, [x, *layer.parameters()], factors) for each in (ours, theirs)
    )
    torch.testing.assert_close(found, truth)


def test_gradients_add_up() -> None:
    layer = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    x = torch.randn(2, 3, 4)
    grads = []
    for _ in range(2):
        outputs, _, cells = bidirectional(layer, x)
        (outputs.sum() + cells.sum()).backward()
        grads.append([parameter.grad.clone() for parameter in layer.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(grads[1], [2 * grad for grad in grads[0]])


def test_what_autograd_does_not_ask_for() -> None:
    layer = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    for part in (0, 2):
        bidirectional(layer, torch.randn(2, 3, 4))[part].sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_autocast() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    x = torch.randn(2, 5, 4, requires_grad=True)
    truth = of_torch(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = bidirectional(layer, x)
    assert {each.dtype for each in found} == {torch.bfloat16}
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours.float(), theirs, atol=0.03, rtol=0.03)
    found[0].float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
