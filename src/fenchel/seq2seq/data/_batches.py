"""Batches of padded pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._vocabulary import BOS, EOS, PAD

MAX_BATCH_TOKENS = 1 << 16
"""How many tokens, padding included, are decoded or validated at once. A batch of long sequences
holds fewer of them, so that its memory stays bounded; one sequence may be longer than this."""


@dataclass(frozen=True)
class Batch:
    """Padded pairs.

    Args:
        source: token ids, (B, S), padded with 0.
        source_lengths: the number of tokens of each row without padding, (B,).
        target: begin, token ids, end, (B, T), padded with 0.

    >>> source, target = torch.tensor([[4, 5, 6], [7, 0, 0]]), torch.tensor([[1, 5, 2], [1, 2, 0]])
    >>> Batch(source, torch.tensor([3, 1]), target).count  # a token and two ends
    tensor(3)
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; copies to a GPU are asynchronous."""
        tensors = (self.source, self.source_lengths, self.target)
        if torch.device(device).type == "cuda" and not self.source.is_cuda:
            tensors = tuple(tensor.pin_memory() for tensor in tensors)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))

    @property
    def count(self) -> Tensor:
        """The number of target tokens to predict: all but begin and padding."""
        return (self.target[:, 1:] != PAD).sum()


def split_batches(lengths: Sequence[int], max_size: int) -> Iterator[slice]:
    """Splits sequences into batches of up to `max_size`, and of up to `MAX_BATCH_TOKENS` tokens.

    Args:
        lengths: of the sequences, in ascending order.
        max_size: the largest number of sequences in a batch.

    >>> list(split_batches([1, 1, 1, MAX_BATCH_TOKENS], 2))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    start = 0
    for end in range(1, len(lengths) + 1):
        full = end < len(lengths) and (end + 1 - start) * lengths[end] > MAX_BATCH_TOKENS
        if end == len(lengths) or end - start == max_size or full:
            yield slice(start, end)
            start = end


def padded(rows: Sequence[Sequence[int]], width: int | None = None) -> Tensor:
    """Rows of ids as one tensor, padded with 0 to the longest row or to `width`."""
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
