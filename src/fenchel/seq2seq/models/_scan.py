"""The decoder's loop over time: LSTM layers, attention and input feeding, with their derivatives.

Backward is written by hand. So a step is a few operations, autograd records nothing, and the
gradient of each weight is one matrix product over all steps.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...mappings import AbstractMapping
from ...mappings._autograd import jacobian_product
from ...mappings._softmax import Softmax
from ._cell import apply_loop, lstm_cell, lstm_cell_backward

aten = torch.ops.aten


class ScanInputs(NamedTuple):
    """What the loop reads, for T steps, B items, S source positions, L layers and H units.

    Args:
        input_gates: (T, B, 4H), the target tokens' part of the first layer's gates.
        recurrent: (L, 4H, 2H), the weights from a layer's input and its own last state to its
            gates. The first layer's input here is the last attentional vector.
        biases: (L − 1, 4H), of the layers after the first.
        keys, values: (B, S, H), of the memory. The values are already multiplied by the memory's
            part of the output weight W_o.
        mask: (B, 1, S), 0 or −inf.
        h, c: (L, B, H), the first states.
        state_weight, bias: (H, H) and (H,), from the last layer's state to the attentional vector.
        alpha: of entmax if it is learnt, else None.
        layer_dropout: (T, L − 1, B, H), dropout's factors between layers, or None.
        vector_dropout: (T, B, H), dropout's factors on the attentional vector, or None.
    """

    input_gates: Tensor
    recurrent: Tensor
    biases: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    h: Tensor
    c: Tensor
    state_weight: Tensor
    bias: Tensor
    alpha: Tensor | None
    layer_dropout: Tensor | None
    vector_dropout: Tensor | None


class AttentionMap:
    """The mapping of the attention and its derivatives, on small rows at little cost per call.

    Args:
        mapping: whose parameters are numbers.
        alpha: of entmax if it is learnt, else None.
    """

    def __init__(self, mapping: AbstractMapping, alpha: Tensor | None) -> None:
        self.mapping = mapping if alpha is None else replace(mapping, alpha=alpha)  # type: ignore[call-arg]
        self.gamma = mapping.gamma
        self.unit_mapping = replace(self.mapping, gamma=1.0)
        # PyTorch's own softmax has the cheapest call.
        self.is_softmax = isinstance(mapping, Softmax) and mapping.gamma == 1.0
        self.is_plain = alpha is None and mapping.gamma == 1.0

    def solve(self, scores: Tensor) -> Tensor:
        """ŷ of the scores, without autograd."""
        if self.is_softmax:
            return torch.softmax(scores, -1)
        return self.mapping.rounded(scores) if self.is_plain else self.mapping(scores)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        """The Jacobian at the solution y times v."""
        if self.is_softmax:
            return aten._softmax_backward_data(v, y, -1, y.dtype)
        product = jacobian_product(self.unit_mapping, y, v)
        return product if self.gamma == 1.0 else product / self.gamma

    def alpha_derivative(self, y: Tensor) -> Tensor:
        """∂ŷ/∂alpha at the solution y, in at least float32."""
        wide = torch.promote_types(y.dtype, torch.float32)
        return self.unit_mapping.parameter_jvp(y.to(wide))  # type: ignore[attr-defined]


@dataclass
class SavedStates:
    """What backward reads of each step. `cells` and `activations` are lists by layer, then step."""

    cells: list[list[Tensor]]
    activations: list[list[Tensor]]
    vectors: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)


class Scan(Function):
    """Attentional vectors (T, B, H) and attention weights (B, T, S), with first derivatives."""

    @staticmethod
    def forward(ctx: Any, mapping: AbstractMapping, *tensors: Any) -> tuple[Tensor, Tensor]:
        inputs = ScanInputs(*tensors)
        steps, batch = inputs.input_gates.shape[:2]
        layers, _, width = inputs.h.shape
        attention_map = AttentionMap(mapping, inputs.alpha)
        biases = [*inputs.biases.unsqueeze(1).expand(-1, batch, -1).contiguous()]
        # The input of each layer at each step, and beside it the layer's own state before.
        layer_inputs = inputs.input_gates.new_empty(layers, steps + 1, batch, 2 * width)
        layer_inputs[:, 0, :, width:] = inputs.h
        layer_inputs[0, 0, :, :width] = 0
        saved = SavedStates([[c] for c in inputs.c], [[] for _ in range(layers)])
        recurrent, keys = inputs.recurrent.transpose(1, 2), inputs.keys.transpose(1, 2)
        state_weight = inputs.state_weight.t()
        h = inputs.h[-1]
        for t in range(steps):
            for layer in range(layers):
                input_gates = biases[layer - 1] if layer else inputs.input_gates[t]
                gates = layer_inputs[layer, t] @ recurrent[layer]
                h, c, activations = lstm_cell(input_gates, gates, saved.cells[layer][-1])
                saved.cells[layer].append(c)
                saved.activations[layer].append(activations)
                layer_inputs[layer, t + 1, :, width:] = h
                if layer + 1 < layers:
                    above = layer_inputs[layer + 1, t, :, :width]
                    _write_dropout(h, inputs.layer_dropout, (t, layer), above)
            y = attention_map.solve(torch.baddbmm(inputs.mask, h.unsqueeze(1), keys))
            from_state = torch.addmm(inputs.bias, h, state_weight).unsqueeze(1)
            vector = torch.baddbmm(from_state, y, inputs.values).squeeze(1).tanh_()
            saved.vectors.append(vector)
            saved.attention.append(y)
            fed = layer_inputs[0, t + 1, :, :width]
            _write_dropout(vector, inputs.vector_dropout, (t,), fed)
        attention = torch.cat(saved.attention, 1)
        ctx.attention_map, ctx.saved = attention_map, saved
        ctx.save_for_backward(*tensors, layer_inputs, attention)
        ctx.set_materialize_grads(False)
        return layer_inputs[0, 1:, :, :width].clone(), attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_vectors: Tensor | None, grad_attention: Tensor | None) -> Any:
        *tensors, layer_inputs, attention = ctx.saved_tensors
        inputs = ScanInputs(*tensors)
        with torch.autocast(layer_inputs.device.type, enabled=False):  # the dtypes are forward's
            grads = _step_gradients(ctx, inputs, grad_vectors, grad_attention)
            return None, *_input_gradients(ctx, inputs, layer_inputs, attention, grads)


def _write_dropout(x: Tensor, factors: Tensor | None, at: tuple[int, ...], out: Tensor) -> None:
    """Writes x, times dropout's factors at a step, to `out`."""
    if factors is None:
        out.copy_(x)
    else:
        torch.mul(x, factors[at], out=out)


class _StepGradients(NamedTuple):
    """The gradients of all steps, in what a step computes.

    Args:
        gates: (L, T, B, 4H), before activation.
        vectors: (B, T, H), before tanh.
        scores: (B, T, S), of the attention.
        y: (B, T, S), the attention weights; None unless alpha is learnt.
        h, c: (L, B, H), before the first step.
    """

    gates: Tensor
    vectors: Tensor
    scores: Tensor
    y: Tensor | None
    h: Tensor
    c: Tensor


def _step_gradients(
    ctx: Any, inputs: ScanInputs, grad_vectors: Tensor | None, grad_attention: Tensor | None
) -> _StepGradients:
    """Runs backward through the steps."""
    saved, attention_map = ctx.saved, ctx.attention_map
    layers, _, width = inputs.h.shape
    all_gates: list[list[Tensor]] = [[] for _ in range(layers)]
    all_vectors, all_scores, all_y = [], [], []
    grad_h, grad_c = [*torch.zeros_like(inputs.h)], [*torch.zeros_like(inputs.c)]
    grad_fed = torch.zeros_like(inputs.h[0])
    values = inputs.values.transpose(1, 2)
    for t in reversed(range(len(inputs.input_gates))):
        if grad_vectors is not None:
            grad_fed = grad_fed + grad_vectors[t]
        if inputs.vector_dropout is not None:
            grad_fed = grad_fed * inputs.vector_dropout[t]
        grad_vector = aten.tanh_backward(grad_fed, saved.vectors[t])
        grad_y = torch.bmm(grad_vector.unsqueeze(1), values)
        if grad_attention is not None:
            grad_y = grad_y + grad_attention[:, t : t + 1]
        grad_scores = attention_map.jvp(saved.attention[t], grad_y)
        all_vectors.append(grad_vector)
        all_y.append(grad_y)
        all_scores.append(grad_scores)
        grad = torch.addmm(grad_h[-1], grad_vector, inputs.state_weight)
        grad = torch.baddbmm(grad.unsqueeze(1), grad_scores, inputs.keys).squeeze(1)
        for layer in reversed(range(layers)):
            c_before, c_after = saved.cells[layer][t : t + 2]
            activations = saved.activations[layer][t]
            gates, grad_c[layer] = lstm_cell_backward(
                grad, grad_c[layer], c_before, c_after, activations
            )
            all_gates[layer].append(gates)
            below, grad_h[layer] = (gates @ inputs.recurrent[layer]).split(width, 1)
            if not layer:
                grad_fed = below
            elif inputs.layer_dropout is None:
                grad = grad_h[layer - 1] + below
            else:
                factors = inputs.layer_dropout[t, layer - 1]
                grad = torch.addcmul(grad_h[layer - 1], below, factors)
    return _StepGradients(
        torch.stack([torch.stack(each[::-1]) for each in all_gates]),
        torch.stack(all_vectors[::-1], 1),
        torch.cat(all_scores[::-1], 1),
        None if inputs.alpha is None else torch.cat(all_y[::-1], 1),
        torch.stack(grad_h),
        torch.stack(grad_c),
    )


def _input_gradients(
    ctx: Any, inputs: ScanInputs, layer_inputs: Tensor, attention: Tensor, grads: _StepGradients
) -> tuple[Tensor | None, ...]:
    """The gradients in the fields of `inputs`, in their order, each one product over all steps."""
    width = inputs.h.shape[-1]
    states = layer_inputs[-1, 1:, :, width:].transpose(0, 1)  # (B, T, H), as the vectors
    gates = grads.gates.flatten(1, 2)
    grad_alpha = None
    if inputs.alpha is not None and grads.y is not None:
        terms = grads.y * ctx.attention_map.alpha_derivative(attention)
        sums = terms.sum(-1, keepdim=True).sum_to_size(inputs.alpha.shape)
        grad_alpha = sums.to(inputs.alpha.dtype)
    return ScanInputs(
        input_gates=grads.gates[0],
        recurrent=torch.bmm(gates.transpose(1, 2), layer_inputs[:, :-1].flatten(1, 2)),
        biases=gates[1:].sum(1),
        keys=torch.bmm(grads.scores.transpose(1, 2), states),
        values=torch.bmm(attention.transpose(1, 2), grads.vectors),
        mask=None,  # type: ignore[arg-type]
        h=grads.h,
        c=grads.c,
        state_weight=grads.vectors.flatten(0, 1).t() @ states.flatten(0, 1),
        bias=grads.vectors.sum((0, 1)),
        alpha=grad_alpha,
        layer_dropout=None,
        vector_dropout=None,
    )


def scan(mapping: AbstractMapping, inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Attentional vectors (T, B, H), with dropout, and attention weights (B, T, S).

    All is computed in the dtype of the gates. `torch.compile` does not trace the loop.
    """
    dtype, alpha = inputs.input_gates.dtype, inputs.alpha
    tensors = [x if x is None or x is alpha else x.to(dtype) for x in inputs]
    return apply_loop(Scan, inputs.input_gates.device, mapping, *tensors)
