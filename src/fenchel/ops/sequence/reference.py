"""Sequences of tags in plain PyTorch: Viterbi's algorithm, and the forward algorithm.

Scores are (B, n, m) and lengths (B, 1) or None. Extra scores are transitions (previous,
next), one matrix (B or 1, m, m) for all neighbours or one for each pair, (B or 1, n − 1, m, m); or
flat, (B or 1, 2m + …), the scores of the first tag, of the last tag, and transitions.
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


def merge(transitions: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Transitions, and scores (B or 1, m) of the first and of the last tag, flat."""
    pieces = (start, end, transitions.flatten(1))
    (batch,) = torch.broadcast_shapes(*(piece.shape[:1] for piece in pieces))
    return torch.cat([piece.expand(batch, -1) for piece in pieces], 1)


def split(extra_scores: Tensor, n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Transitions, (B or 1, m, m) or (B or 1, n − 1, m, m), and the scores (B or 1, m) of the first
    and of the last tag, zero where there are none."""
    if extra_scores.ndim > 2:
        none = extra_scores.new_zeros(1, m)
        return extra_scores, none, none
    start, end, transitions = extra_scores.split([m, m, extra_scores.shape[1] - 2 * m], 1)
    shape = (m, m) if transitions.shape[1] == m * m else (n - 1, m, m)
    return transitions.reshape(len(extra_scores), *shape), start, end


def inside(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which positions belong to each sequence, (B, n)."""
    n = scores.shape[1]
    if lengths is None:
        return scores.new_ones(scores.shape[:2], dtype=torch.bool)
    return torch.arange(n, device=scores.device) < lengths


def _unsolvable(scores: Tensor, steps: Tensor, ends: Tensor, kept: Tensor) -> Tensor:
    """Which instances hold NaN or +inf, (B)."""
    good = (scores < torch.inf) | ~kept.unsqueeze(2)
    steps_good = (steps < torch.inf) | ~kept[:, 1:, None, None]
    good = good.flatten(1).all(1) & steps_good.flatten(1).all(1)
    return ~(good & (ends < torch.inf).all(1))


def map_inference(
    scores: Tensor, extra_scores: Tensor, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The tags of the best sequences, (B, n), and their scores; see `declare_map`."""
    batch, n, m = scores.shape
    transitions, start, end = split(extra_scores, n, m)
    steps, kept = pairs(transitions, n), inside(scores, lengths)
    best, pointers = scores[:, 0] + start, []
    stay = torch.arange(m, device=scores.device).expand(batch, m)
    for i in range(1, n):
        value, pointer = (best.unsqueeze(2) + steps[:, i - 1]).max(1)
        best = torch.where(kept[:, i, None], value + scores[:, i], best)
        pointers.append(torch.where(kept[:, i, None], pointer, stay))
    value, tag = (best + end).max(1)
    tags = [tag]
    for pointer in reversed(pointers):
        tags.append(pointer.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    codes = torch.stack(tags[::-1], 1)
    value = torch.where(_unsolvable(scores, steps, start + end, kept), torch.nan, value)
    codes = torch.where(kept & (value > -torch.inf).unsqueeze(1), codes, -1)
    return codes.to(torch.int32), value


def log_partition(
    scores: Tensor, extra_scores: Tensor, lengths: Tensor | None, option: int
) -> Tensor:
    """log Σ exp of the scores of all sequences, (B)."""
    _, n, m = scores.shape
    transitions, start, end = split(extra_scores, n, m)
    steps, kept = pairs(transitions, n), inside(scores, lengths)
    total = scores[:, 0] + start
    for i in range(1, n):
        value = logsumexp(total.unsqueeze(2) + steps[:, i - 1], 1) + scores[:, i]
        total = torch.where(kept[:, i, None], value, total)
    bad = _unsolvable(scores, steps, start + end, kept)
    return torch.where(bad, torch.nan, logsumexp(total + end))
