"""LSTMs for graphs of `torch.export`: the encoder's as one operator, the decoder's as one step.

PyTorch traces its own LSTM step by step, which fixes the length of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


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
    weights = [getattr(layer, f"{name}_l0{end}") for end in ("", "_reverse") for name in NAMES]
    x, h, c = bidirectional_lstm(x, weights, weights[1].shape[1])
    return x, h[1], c


def run_step(rnn: nn.LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM: the output (B, 1, H) of the last layer, and all states h and c.

    What PyTorch 2.8 makes of `nn.LSTM` is no valid graph of ONNX.

    Args:
        rnn: the LSTM.
        x: (B, inputs), the input.
        h, c: (layers, B, H), the states before the step.
    """
    states, cells = [], []
    for layer, (h_before, c_before) in enumerate(zip(h, c, strict=True)):
        input_weight, state_weight, input_bias, state_bias = (
            getattr(rnn, f"{name}_l{layer}") for name in NAMES
        )
        gates = functional.linear(x, input_weight, input_bias)
        gates = gates + functional.linear(h_before, state_weight, state_bias)
        i, f, g, o = gates.chunk(4, -1)
        cells.append(f.sigmoid() * c_before + i.sigmoid() * g.tanh())
        states.append(x := o.sigmoid() * cells[-1].tanh())
    return x.unsqueeze(1), torch.stack(states), torch.stack(cells)
