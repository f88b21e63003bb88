"""Sequences of tags in plain PyTorch.

Unaries are (B, n, m), transitions (previous, next) one matrix (B or 1, m, m) for all neighbours or
one for each pair, (B or 1, n − 1, m, m), and lengths (B, 1) or None.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._structure import logsumexp


def pairs(transitions: Tensor, n: int) -> Tensor:
    """The transitions of each pair of neighbours, (B or 1, n − 1, m, m)."""
    if transitions.ndim == 4:
        return transitions
    return transitions.unsqueeze(1).expand(-1, n - 1, -1, -1)


def inside(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which positions belong to each sequence, (B, n)."""
    n = scores.shape[1]
    if lengths is None:
        return scores.new_ones(scores.shape[:2], dtype=torch.bool)
    return torch.arange(n, device=scores.device) < lengths


def _unsolvable(scores: Tensor, steps: Tensor, kept: Tensor) -> Tensor:
    """Which instances hold NaN or +inf, (B)."""
    good = (scores < torch.inf) | ~kept.unsqueeze(2)
    steps_good = (steps < torch.inf) | ~kept[:, 1:, None, None]
    return ~(good.flatten(1).all(1) & steps_good.flatten(1).all(1))


def viterbi(
    scores: Tensor, additional: Tensor, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The tags of the best sequences, (B, n), and their scores; see `declare_map`."""
    batch, n, m = scores.shape
    steps, kept = pairs(additional, n), inside(scores, lengths)
    best, pointers = scores[:, 0], []
    stay = torch.arange(m, device=scores.device).expand(batch, m)
    for i in range(1, n):
        value, pointer = (best.unsqueeze(2) + steps[:, i - 1]).max(1)
        best = torch.where(kept[:, i, None], value + scores[:, i], best)
        pointers.append(torch.where(kept[:, i, None], pointer, stay))
    value, tag = best.max(1)
    tags = [tag]
    for pointer in reversed(pointers):
        tags.append(pointer.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    codes = torch.stack(tags[::-1], 1)
    value = torch.where(_unsolvable(scores, steps, kept), torch.nan, value)
    codes = torch.where(kept & (value > -torch.inf).unsqueeze(1), codes, -1)
    return codes.to(torch.int32), value


def log_partition(
    scores: Tensor, additional: Tensor, lengths: Tensor | None, option: int
) -> Tensor:
    """log Σ exp of the scores of all sequences, (B)."""
    n = scores.shape[1]
    steps, kept = pairs(additional, n), inside(scores, lengths)
    total = scores[:, 0]
    for i in range(1, n):
        value = logsumexp(total.unsqueeze(2) + steps[:, i - 1], 1) + scores[:, i]
        total = torch.where(kept[:, i, None], value, total)
    return torch.where(_unsolvable(scores, steps, kept), torch.nan, logsumexp(total))
