"""The LSTM cell and its derivative, one step at a time, and how a loop over steps is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

aten = torch.ops.aten


def lstm_cell(input_gates: Tensor, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h and c after a step, and the activations of the gates.

    Args:
        input_gates: (B, 4H), the input's part of the gates before activation.
        gates: (B, 4H), the state's part, which is overwritten.
        c: (B, H), the cell before the step.
    """
    if gates.is_cuda:
        return aten._thnn_fused_lstm_cell(input_gates, gates, c)
    gates += input_gates
    width = c.shape[1]
    i, f, g, o = gates.split(width, 1)
    gates[:, : 2 * width].sigmoid_()
    g.tanh_()
    o.sigmoid_()
    c = torch.addcmul(f * c, i, g)
    return o * c.tanh(), c, gates


def lstm_cell_backward(
    grad_h: Tensor, grad_c: Tensor, c_before: Tensor, c_after: Tensor, activations: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients in the gates before activation, (B, 4H), and in `c_before`, (B, H).

    Args:
        grad_h, grad_c: (B, H), the gradients in h and c after the step.
        c_before, c_after: (B, H), the cell.
        activations: (B, 4H), as `lstm_cell` returned them.
    """
    if activations.is_cuda:
        return aten._thnn_fused_lstm_cell_backward_impl(
            grad_h, grad_c, c_before, c_after, activations, False
        )[:2]
    width = c_before.shape[1]
    i, f, g, o = activations.split(width, 1)
    tanh_c = c_after.tanh()
    grad_c = grad_c + aten.tanh_backward(grad_h * o, tanh_c)
    grad_gates = torch.empty_like(activations)
    grad_i, grad_f, grad_g, grad_o = grad_gates.split(width, 1)
    torch.mul(grad_c, g, out=grad_i)
    torch.mul(grad_c, c_before, out=grad_f)
    torch.mul(grad_c, i, out=grad_g)
    torch.mul(grad_h, tanh_c, out=grad_o)
    grad_if = grad_gates[:, : 2 * width]
    aten.sigmoid_backward.grad_input(grad_if, activations[:, : 2 * width], grad_input=grad_if)
    aten.tanh_backward.grad_input(grad_g, g, grad_input=grad_g)
    aten.sigmoid_backward.grad_input(grad_o, o, grad_input=grad_o)
    return grad_gates, grad_c * f


def apply_loop(loop: type[Function], device: torch.device, *arguments: Any) -> Any:
    """Applies a loop over time without autocast. `torch.compile` does not trace it."""
    run: Any = loop.apply
    if torch.compiler.is_compiling():
        run = torch.compiler.disable(run)
    with torch.autocast(device.type, enabled=False):
        return run(*arguments)
