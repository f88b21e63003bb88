"""The encoder's LSTM as one operator, for graphs of `torch.export`.

PyTorch traces its own LSTM step by step, which fixes the length of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


@torch.library.custom_op("fenchel::bidirectional_lstm", mutates_args=())
def bidirectional_lstm(
    x: Tensor, weights: Sequence[Tensor], hidden: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs (B, S, 2 · hidden), and the last states h and c, (2, B, hidden)."""
    zero = x.new_zeros(2, x.shape[0], hidden)
    return torch.lstm(x, (zero, zero), list(weights), True, 1, 0.0, False, True, True)


@bidirectional_lstm.register_fake
def _(x: Tensor, weights: Sequence[Tensor], hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    state = x.new_empty(2, x.shape[0], hidden)
    return x.new_empty(*x.shape[:2], 2 * hidden), state, torch.empty_like(state)


def run_layer(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, the last state of the backward direction, and the last cells of both."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(layer, f"{name}_l0{end}") for end in ("", "_reverse") for name in names]
    x, h, c = bidirectional_lstm(x, weights, weights[1].shape[1])
    return x, h[1], c
