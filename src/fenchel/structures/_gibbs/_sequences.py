"""Samples and k best of sequences of tags.

Scores are (B, n, m) in float64, extra scores as in `ops.sequence.reference`, lengths (B, 1) or
None. Every instance has a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops._structure import logsumexp
from ...ops.sequence import reference
from ._draw import draw


def sample(
    scores: Tensor,
    extra_scores: Tensor,
    lengths: Tensor | None,
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Tags (B, num_samples, n), −1 behind the end: sums forward, draws backward."""
    batch, n, m = scores.shape
    transitions, start, end = reference.split(extra_scores, n, m)
    steps, kept = reference.pairs(transitions, n), reference.inside(scores, lengths)
    totals = [scores[:, 0] + start]
    for i in range(1, n):
        value = logsumexp(totals[-1].unsqueeze(2) + steps[:, i - 1], 1) + scores[:, i]
        totals.append(torch.where(kept[:, i, None], value, totals[-1]))
    tags = [draw((totals[-1] + end).unsqueeze(1).expand(-1, num_samples, -1), generator)]
    for i in range(n - 1, 0, -1):
        into = steps[:, i - 1].transpose(1, 2).expand(batch, -1, -1)  # (B, next, previous)
        into = into.gather(1, tags[-1].unsqueeze(2).expand(-1, -1, m))
        previous = draw(totals[i - 1].unsqueeze(1) + into, generator)
        tags.append(torch.where(kept[:, i, None], previous, tags[-1]))
    return torch.where(kept.unsqueeze(1), torch.stack(tags[::-1], -1), -1)


def k_best(scores: Tensor, extra_scores: Tensor, lengths: Tensor | None, k: int) -> Tensor:
    """Tags (B, k, n), best first, −1 behind the last: Viterbi's algorithm with lists of k."""
    batch, n, m = scores.shape
    transitions, start, end = reference.split(extra_scores, n, m)
    steps, kept = reference.pairs(transitions, n), reference.inside(scores, lengths)
    best = scores.new_full((batch, m, k), -torch.inf)  # that end with each tag
    best[..., 0] = scores[:, 0] + start
    stay = torch.arange(m * k, device=scores.device).reshape(m, k)
    pointers = []  # (B, m, k): the previous tag times k plus the place in its list
    for i in range(1, n):
        ways = best.unsqueeze(1) + steps[:, i - 1].transpose(1, 2).unsqueeze(3)
        value, pointer = ways.flatten(2).topk(k)
        inside = kept[:, i, None, None]
        best = torch.where(inside, value + scores[:, i].unsqueeze(2), best)
        pointers.append(torch.where(inside, pointer, stay))
    value, at = (best + end.unsqueeze(2)).flatten(1).topk(k)
    tags = [at // k]
    for pointer in reversed(pointers):
        at = pointer.flatten(1).gather(1, at)
        tags.append(at // k)
    exists = kept.unsqueeze(1) & (value > -torch.inf).unsqueeze(2)
    return torch.where(exists, torch.stack(tags[::-1], -1), -1)
