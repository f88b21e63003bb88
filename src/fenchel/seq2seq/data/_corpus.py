"""Encoded pairs, in memory or read again in every epoch, and their batches.

The order of the batches depends on the seed alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch

from .._files import digest
from ._batches import EMPTY, Batch, split_batches
from ._readers import Pair
from ._vocabulary import BOS, EOS, PAD, Vocabulary

POOL = 50
"""The pairs of this many batches are sorted by length together. More batches mean less padding,
fewer batches mean that the pairs of a batch change more from epoch to epoch."""


class RaggedIds:
    """Rows of token ids of different lengths, in one array, of 64 bits if an id needs them."""

    def __init__(self) -> None:
        self._ids, self._ends = array("i"), array("q", [0])

    def append(self, row: list[int]) -> None:
        """Adds a row at the end."""
        if self._ids.typecode == "i" and max(row, default=PAD) >= 1 << 31:
            self._ids = array("q", self._ids)
        self._ids.extend(row)
        self._ends.append(len(self._ids))

    @cached_property
    def flat(self) -> np.ndarray:
        """All rows, one after the other, and a single padding id at the end."""
        ids = np.frombuffer(self._ids, dtype=self._ids.typecode)
        return np.append(ids, ids.dtype.type(PAD))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each row starts, and where the last one ends."""
        return np.array(self._ends)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each row."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def padded(self, index: np.ndarray, multiple: int = 1) -> np.ndarray:
        """The rows of these indices, padded to the longest, rounded up to a multiple."""
        lengths = self.lengths[index]
        width = -(-int(lengths.max()) // multiple) * multiple
        columns = np.arange(width)
        is_token = columns < lengths[:, None]
        flat_index = np.where(is_token, self.starts[index, None] + columns, len(self.flat) - 1)
        return self.flat[flat_index].astype(np.int64)


@dataclass(frozen=True)
class Encoded:
    """Encoded pairs.

    Args:
        sources: the ids of the sources.
        targets: the ids of the targets, each with begin and end.
        dropped: the number of pairs that were left out because they are too long or empty.
    """

    sources: RaggedIds
    targets: RaggedIds
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, index: np.ndarray, multiple: int = 1) -> Batch:
        """The batch of the pairs of these indices; lengths are rounded up to a multiple."""
        if not len(index):
            return EMPTY
        return Batch(
            torch.from_numpy(self.sources.padded(index, multiple)),
            torch.from_numpy(self.sources.lengths[index]),
            torch.from_numpy(self.targets.padded(index, multiple)),
        )

    @cached_property
    def digest(self) -> str:
        """A short digest of all pairs and their order."""
        sides = (self.sources, self.targets)
        return digest(*(part for side in sides for part in (side.flat, side.starts)))[:16]

    def count(self, index: np.ndarray) -> int:
        """The number of target tokens to predict in the pairs of these indices."""
        return int((self.targets.lengths[index] - 1).sum())


def encode(
    pairs: Iterable[Pair], source: Vocabulary, target: Vocabulary, max_length: int | None = None
) -> Encoded:
    """The encoded pairs, without those that have an empty source or a side of too many tokens."""
    sources, targets, dropped = RaggedIds(), RaggedIds(), 0
    for source_text, target_text in pairs:
        x, y = source.encode(source_text), target.encode(target_text)
        if not x or (max_length is not None and max(len(x), len(y)) > max_length):
            dropped += 1
            continue
        sources.append(x)
        targets.append([BOS, *y, EOS])
    return Encoded(sources, targets, dropped)


def shuffled(encoded: Encoded, size: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Batches of up to `size` pairs of similar lengths, in random order.

    Args:
        encoded: the pairs.
        size: the number of pairs in a batch.
        seed: the numbers that determine the order.
    Returns:
        The indices of the pairs of each batch.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(encoded))
    pools = [order[start : start + POOL * size] for start in range(0, len(order), POOL * size)]
    batches: list[np.ndarray] = []
    for pool in pools:
        lengths = encoded.targets.lengths[pool], encoded.sources.lengths[pool]
        pool = pool[np.lexsort((lengths[1], lengths[0]))]
        batches += [pool[start : start + size] for start in range(0, len(pool), size)]
    return [batches[i] for i in random.permutation(len(batches))]


def by_length(encoded: Encoded, size: int) -> list[np.ndarray]:
    """Batches of up to `size` pairs, the shortest pairs first, for validation."""
    lengths = np.maximum(encoded.sources.lengths, encoded.targets.lengths)
    order = np.lexsort((encoded.sources.lengths, encoded.targets.lengths, lengths))
    return [order[rows] for rows in split_batches(lengths[order].tolist(), size)]


class Corpus:
    """Encoded training pairs, in one buffer, or in many that are read again in every epoch.

    Args:
        read: returns an iterator over all pairs.
        source, target: the vocabularies.
        max_length: pairs with more tokens on a side are dropped.
        buffer: how many pairs are read at a time; None keeps all in memory.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[Pair]],
        source: Vocabulary,
        target: Vocabulary,
        max_length: int,
        buffer: int | None,
    ) -> None:
        self._read, self._buffer = read, buffer
        self._encode = lambda pairs: encode(pairs, source, target, max_length)
        self.kept = self._encode(read()) if buffer is None else None
        """All pairs, if they are in memory."""
        self.dropped = self.kept.dropped if self.kept is not None else 0
        """The number of pairs dropped, of those read so far in this epoch."""

    def buffers(self, first: int = 0) -> Iterator[tuple[int, Encoded]]:
        """The numbered buffers of one epoch, from number `first`; earlier ones are skipped."""
        if self._buffer is None:
            if first == 0 and self.kept is not None:
                yield 0, self.kept
            return
        self.dropped = 0
        pairs = self._read()
        for _ in islice(pairs, first * self._buffer):
            pass
        number = first
        while chunk := list(islice(pairs, self._buffer)):
            encoded = self._encode(chunk)
            self.dropped += encoded.dropped
            yield number, encoded
            number += 1
