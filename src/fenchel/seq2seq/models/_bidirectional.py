"""A bidirectional LSTM layer as a loop over time, both directions at once, with its derivative.

On a GPU a step is two small kernels. Launched by a CUDA graph they are faster than cuDNN's
persistent kernel for large batches, and they leave room for the kernels of other processes.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._cell import apply_loop, lstm_cell, lstm_cell_backward


class BidirectionalScan(Function):
    """The states (S, 2, B, H) after each step, and the last cells (2, B, H).

    Both directions run from the first step to the last, and start at zero. Only first derivatives
    exist.

    Args:
        input_gates: (S, 2, B, 4H), the input's part of the gates.
        recurrent: (2, 4H, H), the weights from the last state to the gates.
    """

    @staticmethod
    def forward(ctx: Any, input_gates: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
        batch, width = input_gates.shape[2], recurrent.shape[-1]
        states = [input_gates.new_zeros(2, batch, width)]
        cells, activations = [input_gates.new_zeros(2 * batch, width)], []
        transposed = recurrent.transpose(1, 2)
        for step_gates in input_gates.flatten(1, 2):
            gates = torch.bmm(states[-1], transposed).flatten(0, 1)
            h, c, active = lstm_cell(step_gates, gates, cells[-1])
            states.append(h.view(2, batch, width))
            cells.append(c)
            activations.append(active)
        states_before = torch.stack(states[:-1])
        ctx.cells, ctx.activations = cells, activations
        ctx.save_for_backward(recurrent, states_before)
        return torch.stack(states[1:]), cells[-1].view(2, batch, width).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor, grad_cells: Tensor) -> tuple[Tensor, Tensor]:
        recurrent, states_before = ctx.saved_tensors
        with torch.autocast(recurrent.device.type, enabled=False):  # the dtypes are forward's
            grad_h = grad_states.clone(memory_format=torch.contiguous_format)
            grad_c = grad_cells.flatten(0, 1)
            grad_gates = []
            for t in reversed(range(len(grad_h))):
                gates, grad_c = lstm_cell_backward(
                    grad_h[t].flatten(0, 1),
                    grad_c,
                    ctx.cells[t],
                    ctx.cells[t + 1],
                    ctx.activations[t],
                )
                grad_gates.append(gates.view(2, -1, gates.shape[-1]))
                if t:
                    grad_h[t - 1].baddbmm_(grad_gates[-1], recurrent)
            gates = torch.stack(grad_gates[::-1])
            # (2, S·B, ·), so that the weights' gradient is one product over all steps.
            flat_gates, flat_states = (
                x.transpose(0, 1).flatten(1, 2) for x in (gates, states_before)
            )
            return gates, torch.bmm(flat_gates.transpose(1, 2), flat_states)


def bidirectional(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a bidirectional `nn.LSTM` computes from x (B, S, inputs), in the dtype of autocast.

    `torch.compile` does not trace the loop.

    Returns:
        The outputs (B, S, 2H), the last state of the backward direction (B, H), and the last cells
        (2, B, H).
    """
    directions = ("l0", "l0_reverse")
    input_weights, state_weights, input_biases, state_biases = (
        [getattr(layer, f"{name}_{direction}") for direction in directions]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    # Added before concatenation, or autograd would give both the same memory for a gradient.
    bias = torch.cat([b + c for b, c in zip(input_biases, state_biases, strict=True)])
    both = nn.functional.linear(x.transpose(0, 1), torch.cat(input_weights), bias)
    forward, backward = both.chunk(2, -1)
    input_gates = torch.stack([forward, backward.flip(0)], 1)
    recurrent = torch.stack(state_weights).to(input_gates.dtype)
    states, cells = apply_loop(BidirectionalScan, x.device, input_gates, recurrent)
    outputs = torch.cat([states[:, 0], states[:, 1].flip(0)], -1)
    return outputs.transpose(0, 1), states[-1, 1], cells
