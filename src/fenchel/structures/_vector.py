"""What structures over d entries share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import _checks
from ._coded import CodedStructure
from ._systematic import decompose_sets


@dataclass(frozen=True)
class VectorStructure(CodedStructure):
    """A set of vectors of zeros and ones, with scores (d,), fewer where `lengths` says so.

    Args:
        d: the number of entries, or the largest in a ragged batch.
    """

    has_projection: ClassVar[bool] = True

    d: int

    def __post_init__(self) -> None:
        _checks.check_size("d", self.d)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def max_lengths(self) -> tuple[int, ...]:
        return (self.d,)

    def decompose(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        sets, weights = decompose_sets(marginals)
        codes = self.codes_of(sets)
        if codes.shape[1]:  # zero marginals of an instance without structures make no valid set
            possible = ~marginals.isnan().any(-1) & self.is_valid(codes[:, 0], None)
            weights = torch.where(possible.unsqueeze(-1), weights, 0.0)
        return codes, weights

    @classmethod
    def examples(cls) -> Iterator[Any]:
        yield cls(1)
        yield cls(4)


def row_mask(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Which entries of rows (B, d) belong to each instance."""
    d = scores.shape[1]
    places = torch.arange(d, device=scores.device).expand(scores.shape[:2])
    return places < (d if lengths is None else lengths)


def mask_rows(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Rows (B, d) with −inf behind the end of each; all NaN if an entry is NaN or +inf."""
    if lengths is not None:
        scores = torch.where(row_mask(scores, lengths), scores, -torch.inf)
    solvable = (scores < torch.inf).all(1, keepdim=True)
    return torch.where(solvable, scores, torch.nan)
