"""Encoded pairs, in memory or read again in every epoch, and their batches in an order that depends
on the seed alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch

from .._files import digest
from ._batches import EMPTY, Batch, batches_within
from ._readers import Pair
from ._vocabulary import BOS, EOS, PAD, Vocabulary

POOL = 50
"""How many batches are cut from pairs sorted by length together: enough for little padding, few
enough for a batch to hold other pairs in every epoch."""


class Sequences:
    """Rows of ids of any length, one after the other in one array."""

    def __init__(self) -> None:
        self._ids, self._ends = array("i"), array("q", [0])

    def append(self, row: list[int]) -> None:
        """Adds a row at the end."""
        self._ids.extend(row)
        self._ends.append(len(self._ids))

    @cached_property
    def flat(self) -> np.ndarray:
        """All rows, and at the very end one padding."""
        return np.append(np.frombuffer(self._ids, dtype=np.int32), np.int32(PAD))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each row starts, and where the last one ends."""
        return np.array(self._ends)

    @cached_property
    def lengths(self) -> np.ndarray:
        """How long each row is."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def padded(self, index: np.ndarray, multiple: int = 1) -> np.ndarray:
        """Some rows, padded to the longest, or to a multiple of it."""
        lengths = self.lengths[index]
        width = -(-int(lengths.max()) // multiple) * multiple
        places = np.arange(width)
        inside = places < lengths[:, None]
        at = np.where(inside, self.starts[index, None] + places, len(self.flat) - 1)
        return self.flat[at].astype(np.int64)


@dataclass(frozen=True)
class Encoded:
    """Encoded pairs; targets hold begin and end.

    Args:
        sources: the ids of the sources.
        targets: begin, the ids and end of the targets.
        dropped: how many pairs were longer than allowed and are not here.
    """

    sources: Sequences
    targets: Sequences
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, index: np.ndarray, multiple: int = 1) -> Batch:
        """The batch of some pairs; lengths are rounded up to a multiple."""
        if not len(index):
            return EMPTY
        return Batch(
            torch.from_numpy(self.sources.padded(index, multiple)),
            torch.from_numpy(self.sources.lengths[index]),
            torch.from_numpy(self.targets.padded(index, multiple)),
        )

    @cached_property
    def digest(self) -> str:
        """A short digest of all pairs, in their order."""
        rows = (self.sources, self.targets)
        return digest(*(part for each in rows for part in (each.flat, each.starts)))[:16]

    def count(self, index: np.ndarray) -> int:
        """How many target tokens of some pairs are predicted."""
        return int((self.targets.lengths[index] - 1).sum())


def encode(
    pairs: Iterable[Pair], source: Vocabulary, target: Vocabulary, longest: int | None = None
) -> Encoded:
    """The encoded pairs, without those of which a side is longer than `longest` tokens."""
    sources, targets, dropped = Sequences(), Sequences(), 0
    for text, wanted in pairs:
        x, y = source.encode(text), target.encode(wanted)
        if not x or (longest is not None and max(len(x), len(y)) > longest):
            dropped += 1
            continue
        sources.append(x)
        targets.append([BOS, *y, EOS])
    return Encoded(sources, targets, dropped)


def shuffled(encoded: Encoded, size: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Batches of up to `size` pairs of similar lengths, in random order.

    Args:
        encoded: the pairs.
        size: pairs in a batch.
        seed: numbers that the order depends on.
    Returns:
        The indices of each batch's pairs.
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


def in_order(encoded: Encoded, size: int) -> list[np.ndarray]:
    """Batches of up to `size` pairs, shortest first, for validation."""
    lengths = np.maximum(encoded.sources.lengths, encoded.targets.lengths)
    order = np.lexsort((encoded.sources.lengths, encoded.targets.lengths, lengths))
    return [order[rows] for rows in batches_within(lengths[order].tolist(), size)]


class Corpus:
    """Encoded training pairs, in buffers: all in one, or `buffer` at a time read anew.

    Args:
        read: returns the pairs from the beginning.
        source, target: the vocabularies.
        longest: longer pairs are dropped.
        buffer: pairs read at a time; None keeps all in memory.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[Pair]],
        source: Vocabulary,
        target: Vocabulary,
        longest: int,
        buffer: int | None,
    ) -> None:
        self._read, self._buffer = read, buffer
        self._encode = lambda pairs: encode(pairs, source, target, longest)
        self.kept = self._encode(read()) if buffer is None else None
        """The pairs, if they are in memory."""
        self.dropped = self.kept.dropped if self.kept is not None else 0
        """How many pairs were too long, among those read so far."""

    def buffers(self, first: int = 0) -> Iterator[tuple[int, Encoded]]:
        """The numbered buffers of one epoch, from one on; what is before is not encoded."""
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
