"""Which keys the queries of a block see, by their intervals and by a mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.attention.reference import allowed, visible


class Intervals(NamedTuple):
    """The keys from start to stop of each query."""

    places: Tensor
    """Those of the keys, (S,)."""
    starts: Tensor
    """(B or 1, 1, 1, T, 1), as are the stops."""
    stops: Tensor
    inner: tuple[int, int]
    """The last of the starts, and the first of the stops, counted from the first key; where values
    may be read."""

    def hide(self, z: Tensor) -> None:
        """Sets scores outside to −inf, with a look at the keys alone that some interval lacks."""
        low, high = max(self.inner[0], 0), max(self.inner[1], 0)
        before, after = self.places[:low], self.places[high:]
        if len(before):
            z[..., :low].masked_fill_(before < self.starts, -torch.inf)
        if len(after):
            z[..., high:].masked_fill_(after >= self.stops, -torch.inf)


class Sight(NamedTuple):
    """What the queries of a block see."""

    mask: Tensor | None
    """(B, G, R, T, S) or ones."""
    intervals: Intervals | None = None
    """None if all of them hold all keys."""

    @property
    def is_whole(self) -> bool:
        """Whether every query sees every key."""
        return self.mask is None and self.intervals is None

    def seen(self) -> Tensor | None:
        """Which keys each query sees; broadcasts to (B, G, R, T, S). None for all."""
        seen = None if self.mask is None else allowed(self.mask)
        if self.intervals is None:
            return seen
        places, starts, stops, _ = self.intervals
        inside = visible(starts, stops, places)
        return inside if seen is None else inside & seen

    def hidden(self, z: Tensor) -> Tensor:
        """The scores (B, G, R, T, S) with −inf where a query does not see a key."""
        seen = self.seen()
        return z if seen is None else z.masked_fill(~seen, -torch.inf)

    def hide(self, z: Tensor) -> Tensor:
        """The same in place, where values may be read."""
        if self.intervals is not None:
            self.intervals.hide(z)
        return z if self.mask is None else z.masked_fill_(~allowed(self.mask), -torch.inf)
