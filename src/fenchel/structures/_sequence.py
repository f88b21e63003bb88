"""Sequences of tags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import sequence as ops
from ..ops._structure import Operators
from ._base import AbstractStructure
from ._coded import CodedStructure


@final
@dataclass(frozen=True)
class Sequence(CodedStructure):
    """One of m tags at each of n positions: a linear chain.

    The scores are unaries (n, m). Extra scores are transitions, (m, m) or (1, m, m) for all
    neighbours or (n − 1, m, m), entry (previous, next), and scores (m,) of the first and of the
    last tag, each with or without batch dimensions. A code is the tags. MAP inference is Viterbi's
    algorithm, marginals the forward-backward algorithm, both in O(n m²).

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

    length: int
    tags: int

    def __post_init__(self) -> None:
        _checks.size("length", self.length)
        _checks.size("tags", self.tags)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, self.tags

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def oracle(self) -> str:
        return "sequence"

    def option(self, extra_scores: Tensor | None) -> int:
        if extra_scores is None:
            return 1
        shared = ops.reference.separated(extra_scores, *self.shape)[0].ndim == 3
        return shared + 2 * (extra_scores.ndim == 2)  # with scores of the first and last tag

    def map_operator(self) -> Callable[..., Any]:
        return ops.map_inference

    def inference_operators(self) -> Operators | None:
        return ops.inference

    def parts(self, codes: Tensor) -> Tensor:
        place = torch.arange(codes.shape[-1], device=codes.device) * self.tags
        return torch.where(codes < 0, -1, codes + place)

    def extras(self, codes: Tensor, extra_scores: Tensor) -> Tensor | None:
        m = self.tags
        first, second = codes[..., :-1], codes[..., 1:]
        place = first * m + second
        if not self.option(extra_scores) % 2:
            pairs = torch.arange(place.shape[-1], device=codes.device)
            place = place + pairs * m**2
        place = torch.where((first < 0) | (second < 0), -1, place)
        if extra_scores.ndim > 2:
            return place
        count = (codes >= 0).sum(-1, keepdim=True)
        ends = codes[..., :1], codes.gather(-1, (count - 1).clamp(min=0)) + m
        pieces = [*ends, torch.where(place < 0, -1, place + 2 * m)]
        return torch.where(count > 0, torch.cat(pieces, -1), -1)

    def apart(self, extra_scores: Tensor) -> Tensor:
        transitions = ops.reference.separated(extra_scores, *self.shape)[0]
        return ops.reference.pairs(transitions, self.length)

    def with_own(self, scores: Tensor, extra_scores: Tensor, lengths: Tensor | None) -> Tensor:
        _, start, end = ops.reference.separated(extra_scores, *self.shape)
        places = torch.arange(self.length, device=scores.device).unsqueeze(1)
        last = self.length - 1 if lengths is None else lengths.unsqueeze(2) - 1
        scores = scores + torch.where(places == 0, start.unsqueeze(1), 0.0)
        return scores + torch.where(places == last, end.unsqueeze(1), 0.0)

    def codes(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.tags), repeat=self.length)))

    def extra_shape(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        m = self.tags
        own = [(m, m), (self.length - 1, m, m), (1, m, m)] if position == 0 else [(m,)]
        return _checks.extra_fits(self.extra_names[position], shape, own, batch)

    def fold(
        self, scores: Tensor, extra_scores: tuple[Tensor | None, ...], lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        transitions, start, end = extra_scores
        if transitions is None:
            transitions = scores.new_zeros(1, self.tags, self.tags)
        if transitions.ndim == 4 and transitions.shape[1] == 1:
            transitions = transitions.squeeze(1)
        if start is None and end is None:
            return scores, transitions
        none = scores.new_zeros(1, self.tags)
        ends = (none if piece is None else piece for piece in (start, end))
        return scores, ops.reference.joined(transitions, *ends)

    def unfold(self, u: Tensor, v: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, ...]:
        if v is None:
            return ()
        transitions = ops.reference.separated(v, *self.shape)[0]
        return (transitions, u[:, 0], self._last(u, lengths))

    def fold_target(
        self, y: Tensor, z: Tensor | None, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        transitions = ops.reference.separated(extra_scores, *self.shape)[0]
        like = y.new_zeros(len(y), *transitions.shape[1:])
        z = like if z is None else z.reshape(like.shape)
        if extra_scores.ndim > 2:
            return z
        return ops.reference.joined(z, y[:, 0], self._last(y, lengths))

    def _last(self, u: Tensor, lengths: Tensor | None) -> Tensor:
        """What belongs to the last tag, (B, m), of (B, n, m)."""
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
