"""Attention in plain differentiable operations that store the scores, of all rows or of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .._checks import HALF, can_read_values
from ..ops.attention.dropout import by_index
from ..ops.attention.reference import mean, scores
from ._pattern import Pattern
from ._problem import Inputs, Setting, is_finite, without_autocast
from ._sight import Intervals, Sight


class Block(NamedTuple):
    """Some of the sequences, groups, heads, queries and keys."""

    batch: slice
    groups: slice
    heads: slice
    queries: slice
    keys: slice

    @classmethod
    def whole(cls, inputs: Inputs) -> Block:
        """All of them."""
        return cls(*(slice(0, size) for size in shape(inputs)))

    def part(self, field: str, tensor: Tensor) -> Tensor:
        """The view of an input, (B or 1, G or 1, R or 1, T or S or 1, ...), that belongs here."""
        parts: dict[int, slice] = {0: self.batch, 1: self.groups}
        if field in ("key", "value"):
            tensor = tensor.narrow(3, self.keys.start, self.keys.stop - self.keys.start)
        else:
            parts |= {2: self.heads, 3: self.queries}
            parts |= {4: self.keys} if field == "mask" else {}
        for dimension, part in parts.items():
            if tensor.shape[dimension] != 1:
                tensor = tensor.narrow(dimension, part.start, part.stop - part.start)
        return tensor

    def per_query(self, x: Tensor) -> Tensor:
        """What a pattern has for queries, (B or 1, T), as (B or 1, 1, 1, T, 1) of this block."""
        return self.part("pattern", x[:, None, None, :, None])

    def sight(
        self, pattern: Pattern, places: Tensor | None, mask: Tensor | None, is_known: bool
    ) -> Sight:
        """Which of the keys at these places the queries see. `is_known`: values may be read."""
        if pattern.is_whole or places is None:
            return Sight(mask)
        inner = (0, 0)
        if is_known and self.queries.start < self.queries.stop:
            last, first = pattern.inner(self.batch, self.queries)
            inner = (last - self.keys.start, first - self.keys.start)
        starts, stops = self.per_query(pattern.starts), self.per_query(pattern.stops)
        return Sight(mask, Intervals(places, starts, stops, inner))


def shape(inputs: Inputs) -> tuple[int, int, int, int, int]:
    """(B, G, R, T, S)."""
    return (*inputs.query.shape[:4], inputs.key.shape[3])  # type: ignore[return-value]


def wide(x: Tensor) -> torch.dtype:
    """The type that a tensor is computed in: float32 for half precision."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """A tensor in the type that it is computed in."""
    return x.float() if x.dtype in HALF else x


def attend(
    inputs: Inputs, setting: Setting, block: Block, drop: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The outputs (B, G, R, T, E) and the weights before dropout (B, G, R, T, S) of a block, in at
    least float32.

    Args:
        inputs: those of the block.
        setting: of the whole problem.
        block: where it is in the whole.
        drop: dropout of weights, where the setting has any.
    """
    query, key, value = (widened(x) for x in inputs[:3])
    pattern, sinks, is_known = setting.pattern, inputs.sinks, can_read_values(query)
    places = distance = None
    if inputs.slopes is not None or not pattern.is_whole:
        start, stop = block.keys.start, block.keys.stop
        places = torch.arange(start, stop, dtype=torch.int32, device=key.device)
        if inputs.slopes is not None:
            distance = (block.per_query(pattern.diagonal) - places).abs()
    sight = block.sight(pattern, places, inputs.mask, is_known)
    scale = setting.scale if inputs.scale is None else inputs.scale.to(query.dtype)
    z = scores(query, key, None, distance, scale, inputs.slopes, inputs.mask, setting.softcap)
    z = sight.hide(z) if is_known else sight.hidden(z)
    if sinks is not None:
        z = torch.cat([z, sinks.to(z.dtype).expand(*z.shape[:-1], 1)], -1)
    spoiled = _spoiled(z)
    if spoiled is not None:
        z = z.masked_fill(spoiled, 0.0)
    y = setting.mapping_of(inputs)(z) if z.numel() else z
    y = y if sinks is None else y[..., :-1]
    weights = y.to(value.dtype)
    if setting.dropout and drop is not None:
        weights = drop(weights)
    output = mean(weights, value, None if is_known else sight.seen())
    if is_known and not sight.is_whole and not is_finite(output):
        output = mean(weights, value, sight.seen())
    if spoiled is None:
        return output, y
    return output.masked_fill(spoiled, torch.nan), y.masked_fill(spoiled, torch.nan)


def _spoiled(z: Tensor) -> Tensor | None:
    """The rows (..., 1) that have NaN among their scores (..., S); None if there are surely none.
    They are solved without it, or their weights would spoil the gradients of the keys and values
    that they see, even where their outputs are not used."""
    if can_read_values(z) and not z.detach().sum().isnan():
        return None
    return z.isnan().any(-1, keepdim=True)


def dense(inputs: Inputs, setting: Setting) -> tuple[Tensor, Tensor]:
    """The outputs in the type of the values, and the weights in that of the queries."""
    block = Block.whole(inputs)
    if setting.seed is None:
        drop = partial(dropout, p=setting.dropout)
    else:
        drop = by_index(setting.seed, setting.dropout, shape(inputs), block)
    output, y = attend(inputs, setting, block, drop)
    return output.to(inputs.value.dtype), y.to(inputs.query.dtype)


def recomputed_gradients(
    solve: Callable[[Inputs], Tensor], inputs: Inputs, grad: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of those inputs that need one, in differentiable operations: what a second
    derivative follows.

    Args:
        solve: the outputs, in differentiable operations.
        inputs: where they are taken.
        grad: of the outputs.
        needs: which inputs need one.
    """
    with torch.enable_grad(), without_autocast(grad.device):
        # Aliases, since one input may have been computed from another.
        alias = Inputs(*(None if x is None else x.view_as(x) for x in inputs))  # type: ignore[arg-type]
        wanted = [x for x, need in zip(alias, needs, strict=True) if x is not None and need]
        found = torch.autograd.grad(
            solve(alias), wanted, grad, create_graph=True, allow_unused=True
        )
    left = iter(found)
    return tuple(next(left) if need else None for need in needs)
