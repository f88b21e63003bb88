"""Alignments of two sentences from scores of their pairs of words.

Each takes scores (B, m, n) and returns weights of the same shape: of hypothesis words for each
premise word (rows), and of premise words for each hypothesis word (columns).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fenchel import Matching, Posterior, Sequence, softmax, sparsemap

from .data import Batch


class Aligned(NamedTuple):
    """Weights, and the posteriors of SparseMAP that they come from, if any."""

    rows: Tensor
    """(B, m, n): for each premise word"""
    columns: Tensor
    """(B, m, n): for each hypothesis word"""
    posteriors: tuple[Posterior, ...] = ()


class SoftmaxAlignment(nn.Module):
    """Every word is aligned on its own: softmax over rows and over columns."""

    def forward(self, scores: Tensor, batch: Batch) -> Aligned:
        mask = batch.mask()
        scores = scores.masked_fill(~mask, -torch.inf)
        return Aligned(softmax(scores, dim=2), softmax(scores, dim=1))


class SequentialAlignment(nn.Module):
    """Alignments of neighbours depend on each other: SparseMAP of a sequence in each direction.

    A step from word t₁ to word t₂ scores by t₂ − t₁ in five bins; the first step and the last by
    whether they are at the first and the last word. That makes 18 parameters for both directions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(2, 5))
        self.first = nn.Parameter(torch.zeros(2, 2))
        self.last = nn.Parameter(torch.zeros(2, 2))

    def forward(self, scores: Tensor, batch: Batch) -> Aligned:
        m, n = batch.premise_lengths, batch.hypothesis_lengths
        rows = self._direction(0, scores, m, n)
        columns = self._direction(1, scores.mT, n, m)
        return Aligned(rows.marginals, columns.marginals.mT, (rows, columns))

    def _direction(self, way: int, scores: Tensor, lengths: Tensor, tags: Tensor) -> Posterior:
        """SparseMAP of sequences of some lengths (B,), each over its own number of tags (B,)."""
        places = torch.arange(scores.shape[2], device=scores.device)
        unaries = scores.masked_fill(places >= tags[:, None, None], -torch.inf)
        bins = (places - places.unsqueeze(1)).clamp(-2, 2) + 2
        start = self.first[way][(places > 0).long()]
        end = self.last[way][(places == tags.unsqueeze(1) - 1).long()]
        extra_scores = (self.steps[way][bins], start, end)
        return sparsemap(Sequence(*scores.shape[1:]), unaries, extra_scores, lengths=lengths)


class MatchingAlignment(nn.Module):
    """No word is aligned twice: SparseMAP of the matching of both sentences."""

    def forward(self, scores: Tensor, batch: Batch) -> Aligned:
        lengths = torch.stack([batch.premise_lengths, batch.hypothesis_lengths], -1)
        posterior = sparsemap(Matching(*scores.shape[1:]), scores, lengths=lengths)
        return Aligned(posterior.marginals, posterior.marginals, (posterior,))


ALIGNMENTS = {
    "softmax": SoftmaxAlignment,
    "sequential": SequentialAlignment,
    "matching": MatchingAlignment,
}
