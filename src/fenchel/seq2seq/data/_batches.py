"""Batches of padded pairs, and the order in which training sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._vocabulary import BOS, EOS, PAD

PLACES = 1 << 16
"""The most padded tokens of several sequences that are decoded or validated at once, so that one
long line does not take the memory of a batch of long lines."""


@dataclass(frozen=True)
class Batch:
    """Padded pairs.

    Args:
        source: token ids, (B, S), padded with 0.
        source_lengths: how many of each row are not padding, (B,).
        target: begin, token ids, end, (B, T), padded with 0.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; on the way to a GPU nobody waits for it."""
        tensors = (self.source, self.source_lengths, self.target)
        if torch.device(device).type == "cuda" and not self.source.is_cuda:
            tensors = tuple(tensor.pin_memory() for tensor in tensors)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))

    @property
    def count(self) -> Tensor:
        """How many target tokens are predicted: all but begin and padding."""
        return (self.target[:, 1:] != PAD).sum()


def batches_within(lengths: Sequence[int], size: int) -> Iterator[slice]:
    """Cuts sequences, the shortest first, into batches of up to `size`, fewer where they are long.

    Args:
        lengths: in ascending order.
        size: the most sequences in a batch.

    >>> list(batches_within([1, 1, 1, PLACES], 2))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    start = 0
    for end in range(1, len(lengths) + 1):
        over = end < len(lengths) and (end + 1 - start) * lengths[end] > PLACES
        if end == len(lengths) or end - start == size or over:
            yield slice(start, end)
            start = end


def padded(rows: Sequence[Sequence[int]], width: int | None = None) -> Tensor:
    """Rows of ids as one tensor, padded with 0 to the longest or to `width`."""
    width = max(map(len, rows)) if width is None else width
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.int64)


def batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """The batch of pairs of token ids, source and target."""
    sources = [source for source, _ in pairs]
    return Batch(
        padded(sources),
        torch.tensor([len(source) for source in sources]),
        padded([[BOS, *target, EOS] for _, target in pairs]),
    )


EMPTY = Batch(torch.full((1, 1), EOS), torch.ones(1, dtype=torch.int64), torch.tensor([[BOS, PAD]]))
"""A batch without a token to predict, for a process that has no part of the last batch."""
