"""Choices of at most, or exactly, k of d entries in plain PyTorch: sorting, and counting."""

from __future__ import annotations

import torch
from torch import Tensor

from .._structure import logsumexp


def lengths_or_all(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """The length of each row, (B, 1)."""
    if lengths is not None:
        return lengths
    return torch.full((len(scores), 1), scores.shape[1], device=scores.device)


def map_inference(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """Which entries (B, d) the best choices hold, 0 or 1, and their scores.

    `option` is 2k for at most k entries and 2k + 1 for exactly k; see `declare_map`.
    """
    k, exact = divmod(option, 2)
    ends = lengths_or_all(scores, lengths)
    place = torch.arange(scores.shape[1], device=scores.device)
    kept = place < ends
    solvable = ((scores < torch.inf) | ~kept).all(1)
    order = torch.where(kept, scores, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, place.expand_as(order))
    chosen = kept & (rank < k) & ((scores > 0) | bool(exact))
    values = torch.where(chosen, scores, 0.0).sum(1)
    if exact:
        values = torch.where(ends[:, 0] < k, -torch.inf, values)
    values = torch.where(solvable, values, torch.nan)
    codes = torch.where(kept & (values > -torch.inf).unsqueeze(1), chosen.int(), -1)
    return codes.to(torch.int32), values


def log_partition(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> Tensor:
    """log Σ exp of the scores of all choices, (B); `option` as for `map_inference`."""
    k, exact = divmod(option, 2)
    kept = torch.arange(scores.shape[1], device=scores.device) < lengths_or_all(scores, lengths)
    scores = torch.where(kept, scores, 0.0)
    bad = ~(scores < torch.inf).all(1)
    none = scores.new_full((len(scores), 1), -torch.inf)
    totals = torch.cat([torch.zeros_like(none), none.expand(-1, k)], 1)  # by the number chosen
    for i in range(scores.shape[1]):
        chosen = torch.cat([none, totals[:, :k] + scores[:, i, None]], 1)
        both = logsumexp(torch.stack([totals, chosen], -1))
        totals = torch.where(kept[:, i, None], both, totals)
    value = totals[:, k] if exact else logsumexp(totals)
    return torch.where(bad, torch.nan, value)
