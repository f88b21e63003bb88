"""The faster network is PyTorch's own over packed rows."""

from __future__ import annotations

import pytest
import torch
from experiments.recurrent import BidirectionalLSTM, run_packed
from torch import nn


@pytest.mark.parametrize("layers", [1, 2])
def test_equals_packed_rows_with_gradients(layers):
    ours = BidirectionalLSTM(3, 4, layers).double()
    theirs = nn.LSTM(3, 4, layers, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for own, given in zip(ours.parameters(), theirs.parameters(), strict=True):
            given.copy_(own)
    lengths = torch.tensor([5, 1, 7, 4])
    rows = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    expected, _ = run_packed(theirs, rows, lengths)
    states = ours(rows, lengths)
    torch.testing.assert_close(states, expected)
    v = torch.randn_like(states)
    gradients = torch.autograd.grad(states, [rows, *ours.parameters()], v)
    truth = torch.autograd.grad(expected, [rows, *theirs.parameters()], v)
    torch.testing.assert_close(gradients, truth)


def test_starts_from_the_same_numbers():
    torch.manual_seed(0)
    ours = BidirectionalLSTM(3, 4, 2)
    torch.manual_seed(0)
    theirs = nn.LSTM(3, 4, 2, bidirectional=True)
    for own, given in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, given, rtol=0, atol=0)
