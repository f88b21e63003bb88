"""A call of attention in one form: grouped heads, and every tensor with five dimensions.

Rows are (B, G, R, T): B sequences, G heads of keys, R heads of the query for each of them, and T
queries. A tensor has these dimensions, S in the place of T if it belongs to keys, and one more. Its
size is 1 wherever it does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _checks
from ..mappings import AbstractMapping, HasParameter
from ._pattern import Pattern


def is_autocast(device: torch.device) -> bool:
    """Whether products on a device are computed in another type."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Products in the types that are given."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


class Inputs(NamedTuple):
    """What may have a gradient."""

    query: Tensor
    """(B, G, R, T, D)."""
    key: Tensor
    """(B, G, 1, S, D)."""
    value: Tensor
    """(B, G, 1, S, E)."""
    scale: Tensor | None = None
    """(B, G, R, T, 1), as are the next four. None if it is a number."""
    gamma: Tensor | None = None
    parameter: Tensor | None = None
    """Of the mapping, if it is a tensor."""
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    mask: Tensor | None = None
    """(B, G, R, T, S)."""


class Setting(NamedTuple):
    """What has none."""

    mapping: AbstractMapping
    pattern: Pattern
    scale: float = 1.0
    softcap: float = 0.0
    dropout: float = 0.0
    seed: Tensor | None = None
    """int64, (1,), for dropout that is the same again when weights are computed again."""

    def seeded(self, device: torch.device) -> Setting:
        """The same with a seed from PyTorch's generator, if there is dropout."""
        if not self.dropout:
            return self
        return self._replace(seed=torch.randint(2**62, (1,), device=device))

    def mapping_of(self, inputs: Inputs) -> AbstractMapping:
        """The mapping, with γ and its parameter for these rows where they are tensors."""
        given: dict[str, Any] = {}
        if inputs.gamma is not None:
            given["gamma"] = inputs.gamma
        if inputs.parameter is not None and isinstance(self.mapping, HasParameter):
            given[self.mapping.parameter] = inputs.parameter
        return self.mapping.unchecked(**{**vars(self.mapping), **given}) if given else self.mapping


class Layout(NamedTuple):
    """How the dimensions of the user's tensors are those of rows."""

    batch: tuple[int, ...]
    """The dimensions before the last two, of the result."""
    num_leading: int
    """How many of them count sequences; at most one counts heads."""
    heads: int
    groups: int

    @property
    def leading(self) -> tuple[int, ...]:
        return self.batch[: self.num_leading]

    def split(self, x: Tensor, groups: int = 0) -> Tensor:
        """(..., a, b) as (B or 1, G or 1, R or 1, a, b). Keys and values have `groups` heads."""
        x = x[(None,) * (len(self.batch) + 2 - x.ndim)]
        leading, heads = x.shape[: self.num_leading], x.shape[self.num_leading : -2]
        if math.prod(leading) != 1:
            x = x.expand(*self.leading, *x.shape[self.num_leading :])
        grouped = (1, 1)
        if math.prod(heads) != 1:
            grouped = (groups, 1) if groups else (self.groups, self.heads // self.groups)
        count = math.prod(x.shape[: self.num_leading])
        return x.reshape(count, *grouped, *x.shape[-2:])

    def vectors(self, x: Tensor, groups: int = 0) -> Tensor:
        """Queries, or keys of so many groups: the same, with no dimension of size 1 in vain."""
        shape = (groups, 1) if groups else (self.groups, self.heads // self.groups)
        return self.split(x, groups).expand(math.prod(self.leading), *shape, *x.shape[-2:])

    def merge(self, x: Tensor) -> Tensor:
        """(B, G, R, a, b) as (..., a, b)."""
        return x.reshape(*self.batch, *x.shape[-2:])


def rows(name: str, value: Tensor, layout: Layout, query: Tensor) -> Tensor:
    """A tensor that broadcasts against (..., T, 1), in five dimensions."""
    value = _checks.move_beside(name, value, query, "query")
    shape = (*layout.batch, query.shape[-2], 1)
    if not broadcasts(value.shape, shape):
        raise ValueError(
            f"`{name}` must broadcast to {shape}, one entry per query; got shape "
            f"{tuple(value.shape)}. One per head has shape ({layout.heads}, 1, 1)."
        )
    return layout.split(value[(None,) * (2 - value.ndim)])


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a tensor of the one shape broadcasts to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(own in (1, wanted) for own, wanted in pairs)


def is_finite(x: Tensor) -> bool:
    """Whether all numbers of a tensor on the CPU are finite: they are if their sum is."""
    x = x.detach() if x.requires_grad else x
    total = x.sum(dtype=torch.float32) if x.dtype in _checks.HALF else x.sum()
    return math.isfinite(total.item())
