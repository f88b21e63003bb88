"""Samples and k best of a choice, of bits and of a budget.

Scores are (B, d) in float64 and lengths (B, 1) or None. Every instance has a structure.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...ops._structure import logsumexp
from .._vector import mask_rows, row_mask
from ._draw import draw, flip


def sample_choice(
    scores: Tensor, lengths: Tensor | None, n: int, generator: torch.Generator | None
) -> Tensor:
    """Indices (B, n, 1)."""
    rows = mask_rows(scores, lengths).unsqueeze(1)
    return draw(rows.expand(-1, n, -1), generator).unsqueeze(-1)


def sample_bits(
    scores: Tensor, lengths: Tensor | None, n: int, generator: torch.Generator | None
) -> Tensor:
    """Bits (B, n, d), −1 behind the end."""
    bits = flip(scores.unsqueeze(1).expand(-1, n, -1), generator)
    return torch.where(row_mask(scores, lengths).unsqueeze(1), bits.long(), -1)


def sample_budget(
    scores: Tensor,
    lengths: Tensor | None,
    k: int,
    exact: bool,
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Bits (B, n, d), k ones or at most so many, −1 behind the end.

    The weight of all choices of c among the first i entries, for every i and c, tells from the
    last entry to the first how likely it is chosen if c entries are left.
    """
    rows = mask_rows(scores, lengths)
    none = torch.full_like(rows[:, :1], -torch.inf)
    weights = [torch.cat([torch.zeros_like(none), none.expand(-1, k)], 1)]  # (B, k + 1)
    for score in rows.unbind(1):
        chosen = torch.cat([none, weights[-1][:, :k] + score.unsqueeze(1)], 1)
        weights.append(logsumexp(torch.stack([weights[-1], chosen], -1)))
    left = torch.full((len(rows), n), k, device=rows.device)
    if not exact:
        left = draw(weights[-1].unsqueeze(1).expand(-1, n, -1), generator)
    bits = []
    for weight, score in zip(reversed(weights[:-1]), reversed(rows.unbind(1)), strict=True):
        before = torch.cat([none, weight], 1)  # by the number of entries, from −1
        odds = before.gather(1, left) + score.unsqueeze(1) - before.gather(1, left + 1)
        bits.append(flip(odds, generator).long())
        left = left - bits[-1]
    codes = torch.stack(bits[::-1], -1)
    return torch.where(row_mask(scores, lengths).unsqueeze(1), codes, -1)


def k_best_choices(scores: Tensor, lengths: Tensor | None, k: int) -> Tensor:
    """Indices (B, k, 1), best first, −1 behind the last."""
    rows = mask_rows(scores, lengths)
    value, index = rows.topk(min(k, rows.shape[1]))
    found = torch.where(value > -torch.inf, index, -1)
    return pad(found, (0, k - found.shape[1]), value=-1).unsqueeze(2)


def k_best_subsets(
    scores: Tensor, lengths: Tensor | None, budget: int | None, exact: bool, k: int
) -> Tensor:
    """Bits (B, k, d), best first, −1 behind the last and behind the end: at most or exactly
    `budget` ones, any number if it is None.

    A dynamic program keeps the k best choices among the first entries, for each number of ones.
    """
    rows, batch = mask_rows(scores, lengths), len(scores)
    counts = 1 if budget is None else budget + 1
    best = rows.new_full((batch, counts, k), -torch.inf)
    best[:, 0, 0] = 0.0
    pointers = []  # (B, counts, k): the place in the list before, plus k if the entry is chosen
    for score in rows.unbind(1):
        fewer = best if budget is None else pad(best, (0, 0, 1, 0), value=-torch.inf)[:, :-1]
        both = torch.cat([best, fewer + score[:, None, None]], 2)
        best, pointer = both.topk(k)
        pointers.append(pointer)
    first = counts - 1 if exact else 0
    value, at = best[:, first:].flatten(1).topk(k)
    at = at + first * k  # the number of ones times k plus the place in its list
    bits = []
    for pointer in reversed(pointers):
        place = pointer.flatten(1).gather(1, at)
        bits.append(place // k)
        left = at // k - (0 if budget is None else bits[-1])
        at = left.clamp(min=0) * k + place % k  # below zero only where there is none
    codes = torch.stack(bits[::-1], -1)
    exists = row_mask(scores, lengths).unsqueeze(1) & (value > -torch.inf).unsqueeze(2)
    return torch.where(exists, codes, -1)
