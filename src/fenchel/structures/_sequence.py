"""Sequences of tags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import viterbi as ops
from ..ops._structure import Operators
from ._base import AbstractStructure
from ._coded import CodedStructure


@final
@dataclass(frozen=True)
class Sequence(CodedStructure):
    """One of m tags at each of n positions: a linear chain.

    The scores are unaries (n, m). Additional scores are transitions, (m, m) or (1, m, m) for all
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
    additional_names: ClassVar[tuple[str, ...]] = ("transitions", "start", "end")

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
        return "viterbi"

    def option(self, additional: Tensor | None) -> int:
        return int(additional is None or additional.ndim == 3)  # whether all pairs share them

    def operator(self) -> Callable[..., Any]:
        return ops.viterbi

    def operators(self) -> Operators | None:
        return ops.chain

    def parts(self, codes: Tensor) -> Tensor:
        place = torch.arange(codes.shape[-1], device=codes.device) * self.tags
        return torch.where(codes < 0, -1, codes + place)

    def extras(self, codes: Tensor, additional: Tensor) -> Tensor | None:
        first, second = codes[..., :-1], codes[..., 1:]
        place = first * self.tags + second
        if additional.ndim == 4:
            pairs = torch.arange(place.shape[-1], device=codes.device)
            place = place + pairs * self.tags**2
        return torch.where((first < 0) | (second < 0), -1, place)

    def apart(self, additional: Tensor) -> Tensor:
        if additional.ndim == 4:
            return additional
        return additional.unsqueeze(1).expand(-1, self.length - 1, -1, -1)

    def codes(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.tags), repeat=self.length)))

    def additional_shape(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        m = self.tags
        own = [(m, m), (self.length - 1, m, m), (1, m, m)] if position == 0 else [(m,)]
        return _checks.additional_fits(self.additional_names[position], shape, own, batch)

    def fold(
        self, scores: Tensor, additional: tuple[Tensor | None, ...], lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        transitions, start, end = additional
        places = torch.arange(self.length, device=scores.device).unsqueeze(1)
        if start is not None:
            scores = scores + torch.where(places == 0, start.unsqueeze(1), 0.0)
        if end is not None:
            last = self.length - 1 if lengths is None else lengths.unsqueeze(2) - 1
            scores = scores + torch.where(places == last, end.unsqueeze(1), 0.0)
        if transitions is None:
            transitions = scores.new_zeros(1, self.tags, self.tags)
        if transitions.ndim == 4 and transitions.shape[1] == 1:
            transitions = transitions.squeeze(1)
        return scores, transitions

    def unfold(self, u: Tensor, v: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, ...]:
        if lengths is None:
            end = u[:, -1]
        else:
            last = (lengths - 1).unsqueeze(2).expand(-1, 1, self.tags)
            end = u.gather(1, last).squeeze(1)
        return () if v is None else (v, u[:, 0], end)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 3)
        yield cls(2, 1)
        yield cls(4, 3)
        yield cls(3, 5)
