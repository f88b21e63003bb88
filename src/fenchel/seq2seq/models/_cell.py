"""The LSTM cell and its derivative, for loops over time that are written out."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def cell(known: Tensor, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h and c after a step, and the activations, from the sum of two parts of the gates (B, 4H);
    the second is overwritten."""
    if gates.is_cuda:
        return aten._thnn_fused_lstm_cell(known, gates, c)
    gates += known
    width = c.shape[1]
    i, f, g, o = gates.split(width, 1)
    gates[:, : 2 * width].sigmoid_()
    g.tanh_()
    o.sigmoid_()
    c = torch.addcmul(f * c, i, g)
    return o * c.tanh(), c, gates


def cell_backward(
    grad_h: Tensor, grad_c: Tensor, before: Tensor, after: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients in the gates (B, 4H) and in the c before, from those in h and c after."""
    if gates.is_cuda:
        return aten._thnn_fused_lstm_cell_backward_impl(
            grad_h, grad_c, before, after, gates, False
        )[:2]
    width = before.shape[1]
    i, f, g, o = gates.split(width, 1)
    t = after.tanh()
    grad_c = grad_c + aten.tanh_backward(grad_h * o, t)
    out = torch.empty_like(gates)
    for part, one, other in zip(
        out.split(width, 1), (grad_c, grad_c, grad_c, grad_h), (g, before, i, t), strict=True
    ):
        torch.mul(one, other, out=part)
    grads = out.split(width, 1)
    aten.sigmoid_backward.grad_input(
        out[:, : 2 * width], gates[:, : 2 * width], grad_input=out[:, : 2 * width]
    )
    aten.tanh_backward.grad_input(grads[2], g, grad_input=grads[2])
    aten.sigmoid_backward.grad_input(grads[3], o, grad_input=grads[3])
    return out, grad_c * f
