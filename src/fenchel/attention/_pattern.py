"""Which keys each query may see: causal, windowed, padded and packed attention as intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import _checks

CAUSAL = ("upper_left", "lower_right")
_FAR = 2**30
"""A side that no query sees the end of, and whose sums with places fit into int32."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Query t of sequence b sees the keys j with starts[b, t] ≤ j < stops[b, t].

    Both never decrease along T. A query that sees nothing has start = stop.
    """

    starts: Tensor
    """(B or 1, T), int32, as are the others."""
    stops: Tensor
    diagonal: Tensor
    """The place of each query among the keys."""
    num_keys: int
    edges: tuple[int, int] | None
    """starts[:, 0] and stops[:, 0], which grow by one from query to query, before they are cut to
    the keys that there are; None where lengths or offsets of sequences decide."""
    is_whole: bool = False
    """Whether every query is known to see every key."""

    def span(self, batch: slice, queries: slice) -> slice:
        """Keys among which are all that these queries of these sequences see. It never waits for a
        device, where it may be wider than needed."""
        first, last = queries.start, queries.stop - 1
        low, high = 0, self.num_keys
        if self.edges is not None:
            low, high = first + self.edges[0], last + self.edges[1]
        elif _checks.can_read_values(self.starts):
            low = int(self._at(first, batch)[0].min())
            high = int(self._at(last, batch)[1].max())
        low = min(max(low, 0), self.num_keys)
        return slice(low, min(max(high, low), self.num_keys))

    def inner(self, batch: slice, queries: slice) -> tuple[int, int]:
        """The last of the starts, and the first of the stops, of these queries of these sequences.
        Between them all keys are seen. Only where values can be read."""
        first, last = queries.start, queries.stop - 1
        if self.edges is not None:
            return last + self.edges[0], first + self.edges[1]
        return int(self._at(last, batch)[0].max()), int(self._at(first, batch)[1].min())

    def _at(self, query: int, batch: slice) -> tuple[np.ndarray, np.ndarray]:
        """The starts and stops of a query in these sequences."""
        rows = batch if self.starts.shape[0] > 1 else slice(None)
        return self.starts.numpy()[rows, query], self.stops.numpy()[rows, query]


def _bounded(side: int | None) -> int | None:
    return None if side is None else min(int(side), _FAR)


def sides(causal: bool | str, window: int | tuple | None) -> tuple[int | None, int | None]:
    """How many keys a query sees to the left and to the right of its own place; None for all."""
    if isinstance(window, (tuple, list)):
        left, right = window
    else:
        left = right = window
        if causal and window is not None:
            left = window - 1
    right = 0 if causal else right
    return _bounded(left), _bounded(right)


def pattern(
    num_queries: int,
    num_keys: int,
    device: torch.device,
    *,
    causal: bool | str = False,
    window: int | tuple | None = None,
    query_lengths: Tensor | None = None,
    key_lengths: Tensor | None = None,
    query_offsets: Tensor | None = None,
    key_offsets: Tensor | None = None,
) -> Pattern:
    """The intervals of T queries and S keys.

    Args:
        num_queries, num_keys: T and S.
        device: of the results.
        causal, window: as for `attention`.
        query_lengths, key_lengths: (B,), of padded sequences.
        query_offsets, key_offsets: (n + 1,), of packed sequences.
    """

    def whole(number: int) -> Tensor:
        return torch.full((1, 1), number, dtype=torch.int32, device=device)

    def bounded(given: Tensor, most: int) -> Tensor:
        return given.to(torch.int32).clamp(0, most)

    left, right = sides(causal, window)
    place = torch.arange(num_queries, dtype=torch.int32, device=device)[None]
    low, high = whole(0), whole(num_keys)
    is_fixed = query_lengths is None and key_lengths is None and query_offsets is None
    if is_fixed and left is None and right is None:
        everything = (-num_queries, num_keys)
        starts, stops = low.expand_as(place), high.expand_as(place)
        return Pattern(starts, stops, place, num_keys, everything, is_whole=True)
    first, count = low, whole(num_queries)
    if query_offsets is not None and key_offsets is not None:
        queries, keys = bounded(query_offsets, num_queries), bounded(key_offsets, num_keys)
        # Queries behind the last sequence belong to one more, which is empty.
        queries = torch.cat([queries, whole(num_queries)[0]])
        keys = torch.cat([keys, keys[-1:]])
        number = torch.searchsorted(queries[1:-1].contiguous(), place, right=True)
        first, count = queries[number], queries[number + 1] - queries[number]
        low, high = keys[number], keys[number + 1]
    if query_lengths is not None:
        count = bounded(query_lengths, num_queries)[:, None]
    if key_lengths is not None:
        high = bounded(key_lengths, num_keys)[:, None]
    ahead = high - count if causal == "lower_right" else low
    diagonal = place - first + ahead
    starts = low if left is None else torch.minimum(torch.maximum(diagonal - left, low), high)
    stops = high if right is None else torch.minimum(diagonal + right + 1, high)
    outside = place - first >= count
    starts = torch.where(outside, high, starts)
    stops = torch.where(outside, high, torch.maximum(stops, starts))
    starts, stops, diagonal = torch.broadcast_tensors(starts, stops, diagonal)
    edges = None
    if is_fixed:
        shift = num_keys - num_queries if causal == "lower_right" else 0
        edges = (
            -num_queries if left is None else shift - left,
            num_keys if right is None else shift + right + 1,
        )
    return Pattern(starts, stops, diagonal, num_keys, edges)
