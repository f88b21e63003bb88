"""Sequences of tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import sequence as ops
from ..ops._structure import Operators
from ..ops.entmax import entmax
from ._base import AbstractStructure
from ._checks import check_extra_dims
from ._coded import CodedStructure
from ._projection import with_derivative
from ._systematic import decompose_sequences


@final
@dataclass(frozen=True)
class Sequence(CodedStructure):
    """One of m tags at each of n positions: a linear chain.

    The scores are unaries (n, m). Extra scores are transitions and scores (m,) of the first and of
    the last tag, each with or without batch dimensions. Transitions are (m, m) or (1, m, m), shared
    by all pairs of neighbours, or (n − 1, m, m), entry (previous, next). A code is the tags. MAP
    inference is Viterbi's algorithm, marginals the forward-backward algorithm, both in O(n m²).
    Without extra scores SparseMAP is sparsemax at each position, on every device.

    Args:
        length: n ≥ 1, or the longest of a ragged batch.
        tags: m ≥ 1.

    >>> unaries = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    >>> from fenchel import map_inference
    >>> map_inference(Sequence(3, 2), unaries, torch.eye(2)).codes
    tensor([0, 0, 0])

    References: rabiner1989tutorial.
    """

    name: ClassVar[str] = "sequence"
    options_dim: ClassVar[int | None] = -1
    extra_names: ClassVar[tuple[str, ...]] = ("transitions", "start", "end")
    has_projection: ClassVar[bool] = True

    length: int
    tags: int

    def __post_init__(self) -> None:
        _checks.check_size("length", self.length)
        _checks.check_size("tags", self.tags)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, self.tags

    @property
    def max_lengths(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def oracle(self) -> str:
        return "sequence"

    def option(self, extra_scores: Tensor | None) -> int:
        if extra_scores is None:
            return 1
        shared = ops.reference.split(extra_scores, *self.shape)[0].ndim == 3
        return shared + 2 * (extra_scores.ndim == 2)  # with scores of the first and last tag

    def map_operator(self) -> Callable[..., Any]:
        return ops.map_inference

    def inference_operators(self) -> Operators | None:
        return ops.inference

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        inside = torch.ones_like(scores, dtype=torch.bool)
        if lengths is not None:
            inside = self.length_mask(lengths)
        scores = torch.where(inside, scores, -torch.inf)
        solvable = (scores < torch.inf).flatten(1).all(1).reshape(-1, 1, 1)
        scores = torch.where(solvable, scores, torch.nan)
        u = with_derivative(entmax(scores.detach(), 2.0), scores, fixed_sum=True)
        blocked = (inside & (scores == -torch.inf)).all(2).any(1).reshape(-1, 1, 1)
        return torch.where(blocked, 0.0, u)

    def decompose(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        return decompose_sequences(marginals)

    def extra_indices(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        m = self.tags
        first, second = codes[..., :-1], codes[..., 1:]
        indices = first * m + second
        if not self.option(extra_scores) % 2:  # transitions of each pair
            pairs = torch.arange(indices.shape[-1], device=codes.device)
            indices = indices + pairs * m**2
        indices = torch.where((first < 0) | (second < 0), -1, indices)
        if extra_scores.ndim > 2:
            return indices
        length = (codes >= 0).sum(-1, keepdim=True)
        ends = codes[..., :1], codes.gather(-1, (length - 1).clamp(min=0)) + m
        pieces = [*ends, torch.where(indices < 0, -1, indices + 2 * m)]
        return torch.where(length > 0, torch.cat(pieces, -1), -1)

    def split_shared(self, extra_scores: Tensor) -> Tensor:
        transitions = ops.reference.split(extra_scores, *self.shape)[0]
        return ops.reference.pairs(transitions, self.length)

    def merge_into_scores(
        self, scores: Tensor, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        _, start, end = ops.reference.split(extra_scores, *self.shape)
        positions = torch.arange(self.length, device=scores.device).unsqueeze(1)
        last = self.length - 1 if lengths is None else lengths.unsqueeze(2) - 1
        scores = scores + torch.where(positions == 0, start.unsqueeze(1), 0.0)
        return scores + torch.where(positions == last, end.unsqueeze(1), 0.0)

    def num_extra_dims(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        m = self.tags
        own = [(m, m), (self.length - 1, m, m), (1, m, m)] if position == 0 else [(m,)]
        return check_extra_dims(self.extra_names[position], shape, own, batch)

    def merge_extra(self, scores: Tensor, extra_scores: tuple[Tensor | None, ...]) -> Tensor | None:
        transitions, start, end = extra_scores
        if transitions is None:
            transitions = scores.new_zeros(1, self.tags, self.tags)
        if transitions.ndim == 4 and transitions.shape[1] == 1:
            transitions = transitions.squeeze(1)
        if start is None and end is None:
            return transitions
        zeros = scores.new_zeros(1, self.tags)
        ends = (zeros if piece is None else piece for piece in (start, end))
        return ops.reference.merge(transitions, *ends)

    def split_extra(
        self, u: Tensor, v: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, ...]:
        if v is None:
            return ()
        transitions = ops.reference.split(v, *self.shape)[0]
        return (transitions, u[:, 0], self._last(u, lengths))

    def merge_target(
        self, y: Tensor, z: Tensor | None, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        transitions = ops.reference.split(extra_scores, *self.shape)[0]
        z = super().merge_target(y, z, transitions, lengths)
        if extra_scores.ndim > 2:
            return z
        return ops.reference.merge(z, y[:, 0], self._last(y, lengths))

    def _last(self, u: Tensor, lengths: Tensor | None) -> Tensor:
        """The rows (B, m) of u (B, n, m) at the last position of each instance."""
        if lengths is None:
            return u[:, -1]
        last = (lengths - 1).unsqueeze(2).expand(-1, 1, self.tags)
        return u.gather(1, last).squeeze(1)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 3)
        yield cls(2, 1)
        yield cls(4, 3)
        yield cls(3, 5)
