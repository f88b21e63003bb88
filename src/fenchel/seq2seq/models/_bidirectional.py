"""A bidirectional LSTM layer as a loop over time, both directions at once, with its derivative.

On a GPU a step is two small kernels. Where a recorded graph launches them, they are faster than
cuDNN's persistent kernel for large batches, and leave room for the kernels of other processes.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._cell import cell, cell_backward


class Loop(Function):
    """The states (S, 2, B, H) after each step, and the last cells (2, B, H); first derivatives.

    Both directions run from first to last, and begin at zero.

    Args:
        gates: (S, 2, B, 4H), the part that the inputs give.
        recurrent: (2, 4H, H), from the last state to the gates.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
        batch, width = gates.shape[2], recurrent.shape[-1]
        states = [gates.new_zeros(2, batch, width)]
        cells, active = [gates.new_zeros(2 * batch, width)], []
        transposed = recurrent.transpose(1, 2)
        for known in gates.flatten(1, 2):
            new = torch.bmm(states[-1], transposed).flatten(0, 1)
            h, c, activations = cell(known, new, cells[-1])
            states.append(h.view(2, batch, width))
            cells.append(c)
            active.append(activations)
        before = torch.stack(states[:-1])
        ctx.cells, ctx.active = cells, active
        ctx.save_for_backward(recurrent, before)
        return torch.stack(states[1:]), cells[-1].view(2, batch, width).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor, grad_cells: Tensor) -> tuple[Tensor, Tensor]:
        recurrent, before = ctx.saved_tensors
        with torch.autocast(before.device.type, enabled=False):  # the types are those of forward
            grad_h = grad_states.clone(memory_format=torch.contiguous_format)
            grad_c = grad_cells.flatten(0, 1)
            in_gates = []
            for t in reversed(range(len(grad_h))):
                before_c, after_c = ctx.cells[t], ctx.cells[t + 1]
                new, grad_c = cell_backward(
                    grad_h[t].flatten(0, 1), grad_c, before_c, after_c, ctx.active[t]
                )
                in_gates.append(new.view(2, -1, new.shape[-1]))
                if t:
                    grad_h[t - 1].baddbmm_(in_gates[-1], recurrent)
            gates = torch.stack(in_gates[::-1])
            given, read = (x.transpose(0, 1).flatten(1, 2) for x in (gates, before))
            return gates, torch.bmm(given.transpose(1, 2), read)


def bidirectional(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a bidirectional `nn.LSTM` makes of x (B, S, inputs): the outputs (B, S, 2H), the last
    state of the backward direction (B, H), and the last cells (2, B, H).

    All is computed in the type that autocast gives the gates; `torch.compile` leaves the loop as it
    is.
    """
    ways = ("l0", "l0_reverse")
    read, kept, one, other = (
        [getattr(layer, f"{name}_{way}") for way in ways]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    # Added before they are joined, or autograd would give both the same memory for a gradient.
    bias = torch.cat([b + c for b, c in zip(one, other, strict=True)])
    known = nn.functional.linear(x.transpose(0, 1), torch.cat(read), bias)
    forward, backward = known.chunk(2, -1)
    gates = torch.stack([forward, backward.flip(0)], 1)
    run: Any = Loop.apply
    if torch.compiler.is_compiling():
        run = torch.compiler.disable(run)
    with torch.autocast(x.device.type, enabled=False):
        states, cells = run(gates, torch.stack(kept).to(gates.dtype))
    outputs = torch.cat([states[:, 0], states[:, 1].flip(0)], -1)
    return outputs.transpose(0, 1), states[-1, 1], cells
