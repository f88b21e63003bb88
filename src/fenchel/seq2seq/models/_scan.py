"""The decoder's loop over time: LSTM layers, attention and input feeding, with their derivatives.

Backward is written out. So a step is a handful of operations, nothing is recorded, and the
gradients of all weights are one matrix product each, over all steps.
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
from ...mappings._protocols import HasKernels
from ...mappings._softmax import Softmax
from ._cell import cell, cell_backward

aten = torch.ops.aten


class Inputs(NamedTuple):
    """What the loop needs, for T steps, B items, S places, L layers and H units.

    Args:
        gates: (T, B, 4H), the part of the first layer's gates that is known beforehand.
        recurrent: (L, 4H, 2H), from what a layer reads and its own last state to its gates; the
            first layer reads the last attentional vector.
        biases: (L − 1, 4H), of the further layers.
        keys, values: (B, S, H), of the memory; a value is its part of the attentional vector.
        mask: (B, 1, S), 0 or −inf.
        h, c: (L, B, H), the states to begin with.
        combine, shift: (H, H) and (H,), from the last layer's state to the attentional vector.
        alpha: of entmax, where it is learnt.
        between: (T, L − 1, B, H), the factors of dropout between layers, or None.
        after: (T, B, H), those on the attentional vector, or None.
    """

    gates: Tensor
    recurrent: Tensor
    biases: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    h: Tensor
    c: Tensor
    combine: Tensor
    shift: Tensor
    alpha: Tensor | None
    between: Tensor | None
    after: Tensor | None


class Weights:
    """A mapping and its Jacobian on small rows, at the least cost of a call.

    Args:
        mapping: with numbers for parameters.
        alpha: of entmax, where it is learnt.
    """

    def __init__(self, mapping: AbstractMapping, alpha: Tensor | None) -> None:
        self.mapping = mapping if alpha is None else replace(mapping, alpha=alpha)  # type: ignore[call-arg]
        self.plain = replace(self.mapping, gamma=1.0)
        self.gamma = mapping.gamma
        self.softmax = isinstance(mapping, Softmax) and mapping.gamma == 1.0
        self.bare = alpha is None and mapping.gamma == 1.0

    def solve(self, scores: Tensor) -> Tensor:
        """ŷ of the scores, without autograd."""
        if self.softmax:
            return torch.softmax(scores, -1)
        return self.mapping.rounded(scores) if self.bare else self.mapping(scores)

    def product(self, y: Tensor, v: Tensor) -> Tensor:
        """The Jacobian at the solution y times v."""
        if self.softmax:
            return aten._softmax_backward_data(v, y, -1, y.dtype)
        wide = torch.promote_types(y.dtype, torch.float32)
        if y.dtype != wide and not isinstance(self.plain, HasKernels):
            product = self.plain.kernel_jvp(y.to(wide), v.to(wide)).to(v.dtype)
        else:
            product = self.plain.kernel_jvp(y, v)
        return product if self.gamma == 1.0 else product / self.gamma

    def slope(self, y: Tensor) -> Tensor:
        """∂ŷ/∂alpha."""
        wide = torch.promote_types(y.dtype, torch.float32)
        return self.plain.parameter_jvp(y.to(wide))


def dropped(x: Tensor, factors: Tensor | None, place: int | tuple[int, ...], out: Tensor) -> None:
    """Writes x, times the factors of dropout at a place, if there are any."""
    if factors is None:
        out.copy_(x)
    else:
        torch.mul(x, factors[place], out=out)


@dataclass
class Tape:
    """What backward reads, step by step; of the lists of lists, layer by layer first."""

    cells: list[list[Tensor]]
    gates: list[list[Tensor]] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)


class Scan(Function):
    """Attentional vectors (T, B, H) and attention weights (T, B, S); first derivatives only."""

    @staticmethod
    def forward(ctx: Any, mapping: AbstractMapping, *tensors: Any) -> tuple[Tensor, Tensor]:
        a = Inputs(*tensors)
        steps, batch = a.gates.shape[:2]
        layers, _, width = a.h.shape
        weights = Weights(mapping, a.alpha)
        known = [*a.biases.unsqueeze(1).expand(-1, batch, -1).contiguous()]
        # What a layer reads at each step, and its own state before it.
        reads = a.gates.new_empty(layers, steps + 1, batch, 2 * width)
        reads[:, 0, :, width:] = a.h
        reads[0, 0, :, :width] = 0
        tape = Tape([[c] for c in a.c], [[] for _ in range(layers)])
        recurrent, keys = a.recurrent.transpose(1, 2), a.keys.transpose(1, 2)
        combine = a.combine.t()
        h = a.h[-1]
        for t in range(steps):
            for layer in range(layers):
                part = known[layer - 1] if layer else a.gates[t]
                new = reads[layer, t] @ recurrent[layer]
                h, c, active = cell(part, new, tape.cells[layer][-1])
                tape.cells[layer].append(c)
                tape.gates[layer].append(active)
                reads[layer, t + 1, :, width:] = h
                if layer + 1 < layers:
                    dropped(h, a.between, (t, layer), reads[layer + 1, t, :, :width])
            y = weights.solve(torch.baddbmm(a.mask, h.unsqueeze(1), keys))
            start = torch.addmm(a.shift, h, combine).unsqueeze(1)
            vector = torch.baddbmm(start, y, a.values).squeeze(1).tanh_()
            tape.vectors.append(vector)
            tape.attention.append(y)
            dropped(vector, a.after, t, reads[0, t + 1, :, :width])
        weight = torch.cat(tape.attention, 1)
        ctx.weights, ctx.tape = weights, tape
        ctx.save_for_backward(*tensors, reads, weight)
        ctx.set_materialize_grads(False)
        return reads[0, 1:, :, :width].clone(), weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_vectors: Tensor | None, grad_weight: Tensor | None) -> Any:
        *tensors, reads, weight = ctx.saved_tensors
        with torch.autocast(reads.device.type, enabled=False):  # the types are those of forward
            return (
                None,
                *_backward(ctx, Inputs(*tensors), reads, weight, grad_vectors, grad_weight),
            )


def _backward(
    ctx: Any,
    a: Inputs,
    reads: Tensor,
    weight: Tensor,
    grad_vectors: Tensor | None,
    grad_weight: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients in the inputs, in their order."""
    tape, weights = ctx.tape, ctx.weights
    layers, _, width = a.h.shape
    in_gates: list[list[Tensor]] = [[] for _ in range(layers)]
    in_vectors, in_scores, in_weight = [], [], []
    grad_h, grad_c = [*torch.zeros_like(a.h)], [*torch.zeros_like(a.c)]
    grad_vector = torch.zeros_like(a.h[0])
    values = a.values.transpose(1, 2)
    for t in reversed(range(len(a.gates))):
        if grad_vectors is not None:
            grad_vector = grad_vector + grad_vectors[t]
        if a.after is not None:
            grad_vector = grad_vector * a.after[t]
        inside = aten.tanh_backward(grad_vector, tape.vectors[t])
        grad_y = torch.bmm(inside.unsqueeze(1), values)
        if grad_weight is not None:
            grad_y = grad_y + grad_weight[:, t : t + 1]
        grad_scores = weights.product(tape.attention[t], grad_y)
        in_vectors.append(inside)
        in_weight.append(grad_y)
        in_scores.append(grad_scores)
        grad = torch.addmm(grad_h[-1], inside, a.combine)
        grad = torch.baddbmm(grad.unsqueeze(1), grad_scores, a.keys).squeeze(1)
        for layer in reversed(range(layers)):
            before, after = tape.cells[layer][t : t + 2]
            new, grad_c[layer] = cell_backward(
                grad, grad_c[layer], before, after, tape.gates[layer][t]
            )
            in_gates[layer].append(new)
            below, grad_h[layer] = (new @ a.recurrent[layer]).split(width, 1)
            if not layer:
                grad_vector = below
            elif a.between is None:
                grad = grad_h[layer - 1] + below
            else:
                grad = torch.addcmul(grad_h[layer - 1], below, a.between[t, layer - 1])
    gates = torch.stack([torch.stack(each[::-1]) for each in in_gates])
    vectors, scores = torch.stack(in_vectors[::-1], 1), torch.cat(in_scores[::-1], 1)
    states = reads[-1, 1:, :, width:].transpose(0, 1)  # (B, T, H), as the vectors
    flat = gates.flatten(1, 2)
    in_alpha = None
    if a.alpha is not None:
        slope = torch.cat(in_weight[::-1], 1) * weights.slope(weight)
        in_alpha = slope.sum(-1, keepdim=True).sum_to_size(a.alpha.shape).to(a.alpha.dtype)
    return (
        gates[0],
        torch.bmm(flat.transpose(1, 2), reads[:, :-1].flatten(1, 2)),
        flat[1:].sum(1),
        torch.bmm(scores.transpose(1, 2), states),
        torch.bmm(weight.transpose(1, 2), vectors),
        None,
        torch.stack(grad_h),
        torch.stack(grad_c),
        vectors.flatten(0, 1).t() @ states.flatten(0, 1),
        vectors.sum((0, 1)),
        in_alpha,
        None,
        None,
    )


def scan(mapping: AbstractMapping, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Attentional vectors (T, B, H), with dropout, and attention weights (B, T, S).

    All is computed in the type of the gates; `torch.compile` leaves the loop as it is.
    """
    dtype, alpha = inputs.gates.dtype, inputs.alpha
    tensors = [x if x is None or x is alpha else x.to(dtype) for x in inputs]
    run: Any = Scan.apply
    if torch.compiler.is_compiling():
        run = torch.compiler.disable(run)
    with torch.autocast(inputs.gates.device.type, enabled=False):
        return run(mapping, *tensors)
