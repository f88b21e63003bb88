"""A linear layer and its Fenchel-Young loss in one: scores in chunks, gradients by support."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from .. import _checks
from ..mappings import AbstractMapping
from ..ops.entmax.reference import support_of
from ..ops.gather import gather_sum, transpose

_CHUNK_BYTES = 2**29
"""How large the scores of a chunk may be by default."""


def linear_fenchel_young_loss(
    mapping: AbstractMapping,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    chunk: int | None = None,
) -> Tensor:
    """`fenchel_young_loss(mapping, hidden @ weight.T + bias, target)` without storing the scores.

    The gradient in the scores is ŷ − target, a few dozen nonzeros in a row of a trained model: the
    gradients in hidden and weight gather and scatter over these, in place of two matrix products.
    A chunk whose supports are wide takes the products.

    Args:
        mapping: gives ŷ, Ω and γ; its parameters must be numbers.
        hidden: (..., D), floating point.
        weight: (V, D), of the same type; perhaps an embedding's own.
        target: (...), class indices.
        bias: (V,) or None.
        reduction: "none", "mean" or "sum" over the rows.
        ignore_index: rows with this index count for nothing.
        chunk: how many rows of scores to hold at a time; by default as many as half a GiB takes.
    Returns:
        A scalar, or with "none" one loss per row, (...).
    Raises:
        TypeError, ValueError: for arguments of the wrong kind, shape or value.

    Keeps the supports between forward and backward; waits for the device once per chunk, to learn
    how wide they are. First derivatives only.

    >>> import torch
    >>> from fenchel import Entmax
    >>> hidden, weight = torch.eye(2, 3), torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> linear_fenchel_young_loss(Entmax(1.5), hidden, weight, torch.tensor([0, 0]))
    tensor(0.5308)
    """
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.mapping(mapping, AbstractMapping)
    _checks.linear(mapping, hidden, weight, bias, chunk)
    rows, classes = hidden.reshape(-1, hidden.shape[-1]), weight.shape[0]
    scores = torch.empty((*hidden.shape[:-1], classes), device="meta")
    if not _checks.target(target, scores, hidden.ndim - 1, ignore_index):
        raise TypeError("`target` must hold class indices, got floating point.")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows, weight = rows.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    kept = target.reshape(-1) != ignore_index
    indices = torch.where(kept, target.reshape(-1), 0).to(torch.int64)
    rows = torch.where(kept[:, None], rows, 0)  # a product with zero keeps NaN
    weights = kept.to(torch.promote_types(rows.dtype, torch.float32))
    if reduction == "mean":
        weights = weights / kept.sum().clamp(min=1)
    if chunk is None:
        chunk = max(1, _CHUNK_BYTES // (classes * rows.element_size()))
    plan = _Plan(mapping, chunk, reduction != "none", torch.is_grad_enabled())
    with torch.autocast(device, enabled=False):
        loss = LinearLoss.apply(rows, weight, bias, indices, weights, plan)
    if reduction == "mean":  # NaN if there is no row, as in torch
        loss = torch.where(kept.any(), loss, torch.nan)
    if device == "cpu" or not torch.is_autocast_enabled(device):
        loss = loss.to(rows.dtype)
    return loss.view(target.shape) if reduction == "none" else loss


class _Plan(NamedTuple):
    """What is no tensor: whether the losses are summed, and whether a gradient may be asked for."""

    mapping: AbstractMapping
    chunk: int
    summed: bool
    watched: bool


@dataclass
class _Supports:
    """The gradient y − target of some rows: columns and values (n, k), padded, and counts (n,)."""

    columns: Tensor
    values: Tensor
    counts: Tensor


class _Problem:
    """The scores of a block of rows, and the loss and gradients that follow."""

    def __init__(self, mapping: AbstractMapping, weight: Tensor, bias: Tensor | None) -> None:
        self.mapping, self.weight, self.bias = mapping, weight, bias
        self.gamma = float(mapping.gamma)
        # From this size of support on, two dense products are faster than gathers.
        self.most = min(weight.shape[0], max(64, weight.shape[0] // 256))

    def scores(self, hidden: Tensor) -> Tensor:
        """θ/γ, (n, V)."""
        bias = self.bias
        if self.gamma != 1.0:
            hidden = hidden / self.gamma
            bias = None if bias is None else bias / self.gamma
        return linear(hidden, self.weight, bias)

    def solve(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (n,), and the state or the solution."""
        if self.mapping.has_state:
            value, state = self.mapping.solve_state(scores)
        else:
            wide = torch.promote_types(scores.dtype, torch.float32)
            value, state = self.mapping.solve_max(scores.to(wide))
        value = value - scores.gather(-1, target).squeeze(-1)
        return self.gamma * (value + self.mapping.vertex_omega(target, scores)), state

    def supports(
        self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor
    ) -> _Supports | None:
        """The rows' gradients if no support is too wide, each with its target first; rows of weight
        zero have no entry."""
        if self.mapping.has_state:
            columns, values, counts = self.mapping.support_from(scores, state, self.most)
        else:
            columns, values, counts = support_of(state, self.most)
        kept = weights != 0
        counts = torch.where(kept.squeeze(1), counts, 0)
        widest = int(counts.max())
        if widest > self.most:
            return None
        minus = torch.full_like(target, -1, dtype=values.dtype)
        columns = torch.cat([target.to(columns.dtype), columns[:, :widest]], 1)
        values = torch.cat([minus, values[:, :widest]], 1)
        columns = torch.where(kept, columns, scores.shape[1])
        return _Supports(columns, values, counts + kept.squeeze(1))

    def gradient(self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        """weights (n, 1) times y − target, (n, V)."""
        if self.mapping.has_state:
            return self.mapping.gradient(scores, state, target, weights, True)
        gradient = (weights * state).scatter_add_(-1, target, -weights.to(state.dtype))
        return gradient.to(scores.dtype)


class _Gradients:
    """The gradients in hidden, weight and bias, as far as they are wanted, made of parts."""

    def __init__(self, wanted: tuple[bool, ...]) -> None:
        self.wanted = wanted
        self.parts: list[tuple[slice, Tensor]] = []  # of the gradient in hidden
        self.in_weight: Tensor | None = None
        self.in_bias: Tensor | None = None

    def add(self, part: slice, gradient: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Adds what the gradient (n, V) in the scores of a part of the rows gives."""
        if self.wanted[0]:
            self.parts.append((part, gradient @ weight))
        if self.wanted[1]:
            self._add_weight(gradient.T, hidden[part], exact=len(gradient) == len(hidden))
        if self.wanted[2]:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            self._add_bias(gradient.sum(0, dtype=wide))

    def gather(
        self,
        sparse: list[tuple[slice, _Supports]],
        rows: Tensor,
        hidden: Tensor,
        weight: Tensor,
    ) -> None:
        """Adds what the supports give, their rows weighted by `rows` (n, 1)."""
        classes, width = weight.shape[0], max(s.columns.shape[1] for _, s in sparse)

        def joined(name: str, fill: float) -> Tensor:
            values = [getattr(supports, name) for _, supports in sparse]
            return torch.cat([pad(v, (0, width - v.shape[1]), value=fill) for v in values])

        places = torch.cat([torch.arange(len(rows), device=rows.device)[p] for p, _ in sparse])
        columns, values = joined("columns", classes), joined("values", 0.0) * rows[places]
        if self.wanted[0]:
            starts = torch.arange(len(places), device=rows.device) * width
            ends = starts + torch.cat([supports.counts for _, supports in sparse])
            product = gather_sum(weight, starts, ends, columns.flatten(), values.flatten())
            sizes = [len(supports.counts) for _, supports in sparse]
            parts = [part for part, _ in sparse]
            self.parts += zip(parts, product.split(sizes), strict=True)
        if self.wanted[1] or self.wanted[2]:
            starts, ends, index, values = transpose(columns, values, classes)
            index = places[index]
            if self.wanted[1]:
                product = gather_sum(hidden, starts, ends, index, values)
                self.in_weight = product if self.in_weight is None else self.in_weight.add_(product)
            if self.wanted[2]:
                ones = values.new_ones(len(rows), 1)
                self._add_bias(gather_sum(ones, starts, ends, index, values).squeeze(1))

    def _add_weight(self, gradient: Tensor, hidden: Tensor, exact: bool) -> None:
        """Adds (V, n) @ (n, D): in float32 if there will be several and the sum is not too large,
        so that only the result is rounded to half precision."""
        entries = gradient.shape[0] * hidden.shape[1]
        if gradient.dtype in _checks.HALF and not exact and 4 * entries <= _CHUNK_BYTES:
            if gradient.is_cuda:
                product = torch.mm(gradient, hidden, out_dtype=torch.float32)
            else:
                product = gradient.float() @ hidden.float()
            self.in_weight = product if self.in_weight is None else self.in_weight.add_(product)
        elif self.in_weight is None:
            self.in_weight = gradient @ hidden
        else:
            self.in_weight.addmm_(gradient, hidden)

    def _add_bias(self, gradient: Tensor) -> None:
        self.in_bias = gradient if self.in_bias is None else self.in_bias + gradient

    def scale(self, factor: Tensor) -> None:
        """Multiplies what is there."""
        for value in (*(value for _, value in self.parts), self.in_weight, self.in_bias):
            if value is not None:
                value.mul_(factor)

    def results(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        in_hidden = None
        if self.wanted[0]:
            whole = len(self.parts) == 1 and len(self.parts[0][1]) == len(hidden)
            in_hidden = self.parts[0][1] if whole else torch.zeros_like(hidden)
            for part, value in () if whole else self.parts:
                in_hidden[part] = value
        in_weight = in_bias = None
        if self.wanted[1]:
            some = torch.zeros_like(weight) if self.in_weight is None else self.in_weight
            in_weight = some.to(weight.dtype)
        if self.wanted[2] and bias is not None:
            sums = torch.zeros_like(bias) if self.in_bias is None else self.in_bias
            in_bias = sums.to(bias.dtype)
        return in_hidden, in_weight, in_bias


class LinearLoss(Function):
    """Σ weights_i loss_i, or each weights_i loss_i, from hidden (n, D), weight (V, D), bias (V,).

    A chunk with narrow supports keeps them for backward. One without takes its dense products at
    once if the losses are summed; if not, backward computes its scores again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        weights: Tensor,
        plan: _Plan,
    ) -> Tensor:
        problem = _Problem(plan.mapping, weight, bias)
        target, weights = target[:, None], weights[:, None]
        wanted = tuple(needed and plan.watched for needed in ctx.needs_input_grad[:3])
        losses = weights.new_empty(hidden.shape[0])
        ctx.supports, ctx.dense = [], _Gradients(wanted) if plan.summed else None
        for start in range(0, hidden.shape[0], plan.chunk):
            part = slice(start, start + plan.chunk)
            scores = problem.scores(hidden[part])
            losses[part], state = problem.solve(scores, target[part])
            if any(wanted):
                supports = problem.supports(scores, state, target[part], weights[part])
                ctx.supports.append((part, supports))
                if supports is None and ctx.dense is not None:
                    gradient = problem.gradient(scores, state, target[part], weights[part])
                    ctx.dense.add(part, gradient, hidden, weight)
                    del gradient
            del scores, state  # before the next chunk's
        ctx.save_for_backward(hidden, weight, bias, target, weights)
        ctx.mapping = plan.mapping
        losses = torch.where(weights[:, 0] == 0, 0.0, losses * weights[:, 0])
        return losses.sum() if plan.summed else losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, weights = ctx.saved_tensors
        rows = weights * grad.to(weights.dtype).reshape(-1, 1)
        total, ctx.dense = ctx.dense, None  # handed over: a second backward computes them again
        if total is not None:
            total.scale(grad)
        else:
            total = _Gradients(ctx.needs_input_grad[:3])
            problem = _Problem(ctx.mapping, weight, bias)
            for part in [part for part, supports in ctx.supports if supports is None]:
                scores = problem.scores(hidden[part])
                _, state = problem.solve(scores, target[part])
                gradient = problem.gradient(scores, state, target[part], rows[part])
                total.add(part, gradient, hidden, weight)
        sparse = [(part, supports) for part, supports in ctx.supports if supports is not None]
        if sparse:
            total.gather(sparse, rows, hidden, weight)
        return (*total.results(hidden, weight, bias), None, None, None)
