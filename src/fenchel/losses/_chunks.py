"""The rows of a linear layer's loss, chunk by chunk: their scores, supports and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._protocols import HasState
from ..ops.entmax.reference import support_of
from ..ops.gather import gather_sum, transpose

_SUM_BYTES = 2**29
"""How large a sum in float32 of gradients in half precision may be."""


class Problem:
    """The scores of a block of rows, and the loss and gradients that follow."""

    def __init__(self, mapping: AbstractMapping, weight: Tensor, bias: Tensor | None) -> None:
        self.mapping, self.weight, self.bias = mapping, weight, bias
        self.gamma = float(mapping.gamma)
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        # From this size of support on, two dense products are faster than gathers.
        self.max_width = min(weight.shape[0], max(64, weight.shape[0] // 256))

    def solve(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """θ/γ, (n, V), up to a number for each row; the losses (n,); the state or the solution."""
        scores = linear(hidden, self.weight, self.bias)
        if self.gamma == 1.0:
            value, state = self._max(scores, target)
            losses = value + self.mapping.vertex_omega(target, scores)
        else:
            shift: Any = self.mapping.shift(scores)
            distance = shift.to(self.wide) - scores.gather(-1, target)
            scores = scores.sub_(shift).div_(self.gamma)
            value, state = self._max(scores)
            omega = self.mapping.vertex_omega(target, scores)
            losses = self.gamma * (value + omega) + distance.squeeze(-1)
        rounding = self.gamma * torch.finfo(losses.dtype).eps / 2
        return scores, torch.where(losses < rounding, 0.0, losses), state

    def _max(self, scores: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if isinstance(self.mapping, HasState):
            return self.mapping.solve_state(scores, target)
        return self.mapping.solve_max(scores.to(self.wide), target)

    def supports(
        self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The nonzeros of y − target, as `support_of` gives them."""
        if isinstance(self.mapping, HasState):
            return self.mapping.support_from(scores, state, target, weights, self.max_width)
        return support_of(state, target, weights, self.max_width)

    def gradient(self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor) -> Tensor:
        """weights (n, 1) times y − target, (n, V); may overwrite the scores."""
        if isinstance(self.mapping, HasState):
            return self.mapping.gradient(scores, state, target, weights, True)
        gradient = (weights * state).scatter_add_(-1, target, -weights.to(state.dtype))
        return torch.where(weights == 0, 0.0, gradient).to(scores.dtype)


class Chunk:
    """Some rows after the forward pass: their supports; and their scores, until it is known whether
    the supports are narrow enough to do without."""

    def __init__(
        self,
        problem: Problem,
        part: slice,
        scores: Tensor,
        state: Tensor,
        target: Tensor,
        weights: Tensor,
    ) -> None:
        self.part, self.narrow, self.width = part, True, 0
        rest = problem, part, scores, state, target, weights
        self._rest: tuple[Problem, slice, Tensor, Tensor, Tensor, Tensor] | None = rest
        self.supports = problem.supports(scores, state, target, weights)
        widest = self.supports[2].max()
        self._widest = widest.to("cpu", non_blocking=widest.is_cuda)
        self._copied = None
        if widest.is_cuda:
            self._copied = torch.cuda.current_stream(widest.device).record_event()

    def finalize(self, dense: Gradients | None, hidden: Tensor) -> None:
        """Waits for the supports' width, and drops the scores; the gradients of rows with wide
        supports are added to the dense ones if given."""
        if self._rest is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        self.width = int(self._widest)
        self.narrow = self.width <= self.supports[0].shape[1]
        if not self.narrow and dense is not None:
            dense.add(*self._rest, hidden)
        self._rest = None


class Entries:
    """The gradients y − target of all rows, times their weights, by entries of which a row has a
    fixed number of places."""

    def __init__(self, chunks: list[Chunk], rows: Tensor) -> None:
        def joined(parts: list[Tensor]) -> Tensor:
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        self.chunks = chunks
        self.columns = joined([chunk.supports[0] for chunk in chunks])
        self.values = joined([chunk.supports[1] for chunk in chunks]) * rows
        counts = joined([chunk.supports[2] for chunk in chunks])
        n, width = self.columns.shape
        self.starts = torch.arange(0, n * width, width, device=rows.device)
        self.ends = self.starts + counts.clamp(max=width)

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Starts, ends, columns and values by rows; those of wide supports hold anything."""
        return self.starts, self.ends, self.columns.flatten(), self.values.flatten()

    def transposed(self, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Starts, ends, rows and values by columns, without the rows of wide supports."""
        for chunk in self.chunks:
            if not chunk.narrow:
                self.columns[chunk.part] = classes
        width = max(chunk.width for chunk in self.chunks if chunk.narrow)
        return transpose(self.columns[:, :width], self.values[:, :width], classes)


class Gradients:
    """The gradients in hidden, weight and bias, as far as they are wanted, made of parts."""

    def __init__(self, wanted: tuple[bool, ...]) -> None:
        self.wanted = wanted
        self.gathered: Tensor | None = None  # in hidden, but for the parts
        self.parts: list[tuple[slice, Tensor]] = []
        self.in_weight: Tensor | None = None
        self.in_bias: Tensor | None = None

    def add(
        self,
        problem: Problem,
        part: slice,
        scores: Tensor,
        state: Tensor,
        target: Tensor,
        weights: Tensor,
        hidden: Tensor,
    ) -> None:
        """Adds what the gradient in the scores of a part of the rows gives, by products."""
        gradient = problem.gradient(scores, state, target, weights)
        if self.wanted[0]:
            self.parts.append((part, gradient @ problem.weight))
        if self.wanted[1]:
            rows = torch.where(weights == 0, 0, hidden[part])  # a product with zero keeps NaN
            self._add_weight(gradient.T, rows, exact=len(rows) == len(hidden))
        if self.wanted[2]:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            self._add_bias(gradient.sum(0, dtype=wide))

    def gather(self, entries: Entries, hidden: Tensor, weight: Tensor) -> None:
        """Adds what the narrow supports give."""
        if self.wanted[0]:
            self.gathered = gather_sum(weight, *entries.rows())
        if self.wanted[1] or self.wanted[2]:
            starts, ends, index, values = entries.transposed(weight.shape[0])
            if self.wanted[1]:
                product = gather_sum(hidden, starts, ends, index, values)
                self.in_weight = product if self.in_weight is None else self.in_weight.add_(product)
            if self.wanted[2]:
                ones = values.new_ones(len(hidden), 1)
                self._add_bias(gather_sum(ones, starts, ends, index, values).squeeze(1))

    def _add_weight(self, gradient: Tensor, hidden: Tensor, exact: bool) -> None:
        """Adds (V, n) @ (n, D): in float32 if there will be several and the sum is not too large,
        so that only the result is rounded to half precision."""
        entries = gradient.shape[0] * hidden.shape[1]
        if gradient.dtype in _checks.HALF and not exact and 4 * entries <= _SUM_BYTES:
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
        in_hidden = in_weight = in_bias = None
        if self.wanted[0]:
            whole = len(self.parts) == 1 and len(self.parts[0][1]) == len(hidden)
            in_hidden = self.parts[0][1] if whole else self.gathered
            if in_hidden is None:
                in_hidden = torch.zeros_like(hidden)
            for part, value in () if whole else self.parts:
                in_hidden[part] = value
        if self.wanted[1]:
            some = torch.zeros_like(weight) if self.in_weight is None else self.in_weight
            in_weight = some.to(weight.dtype)
        if self.wanted[2] and bias is not None:
            sums = torch.zeros_like(bias) if self.in_bias is None else self.in_bias
            in_bias = sums.to(bias.dtype)
        return in_hidden, in_weight, in_bias
