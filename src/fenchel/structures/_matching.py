"""Matchings of two sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import matching as ops
from ._base import AbstractStructure
from ._coded import CodedStructure


@final
@dataclass(frozen=True)
class Matching(CodedStructure):
    """Pairs of rows and columns: each in at most one, and as many pairs as there can be.

    The scores are (rows, columns). A code is the column of each row, −1 for a row without one. MAP
    inference is the algorithm of Jonker and Volgenant, O(n²m) for the smaller side n. Marginals are
    intractable: their sum is a permanent.

    Args:
        rows, columns: the sizes of the sets, or the largest in a ragged batch, whose `lengths` are
            (..., 2).

    >>> from fenchel import map_inference
    >>> map_inference(Matching(2, 3), torch.tensor([[3.0, 1.0, 0.0], [2.5, 1.0, 0.0]])).codes
    tensor([0, 1])

    References: jonker1987shortest.
    """

    name: ClassVar[str] = "matching"
    options_dim: ClassVar[int | None] = -1

    rows: int
    columns: int

    def __post_init__(self) -> None:
        _checks.size("rows", self.rows)
        _checks.size("columns", self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def sides(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def oracle(self) -> str:
        return "matching"

    @property
    def intractable(self) -> str:
        return (
            "the log-partition of a matching is intractable: it is a permanent; use MAP inference "
            "or SparseMAP."
        )

    def within(self, lengths: Tensor) -> Tensor:
        rows, columns = (
            torch.arange(n, device=lengths.device) < lengths[:, k : k + 1]
            for n, k in zip(self.shape, (0, 1), strict=True)
        )
        return rows.unsqueeze(2) & columns.unsqueeze(1)

    def option(self, extra_scores: Tensor | None) -> int:
        return 0

    def map_operator(self) -> Callable[..., Any]:
        return ops.map_inference

    def parts(self, codes: Tensor) -> Tensor:
        place = torch.arange(codes.shape[-1], device=codes.device) * self.columns
        return torch.where(codes < 0, -1, codes + place)

    def holds(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        fewest = min(self.shape) if lengths is None else lengths.amin(1)
        taken = self.indicator(codes)
        if lengths is not None:
            taken = taken * self.within(lengths)
        return (taken.sum(1) <= 1).all(1) & (taken.sum((1, 2)) == fewest)

    def codes(self) -> Tensor:
        if self.rows <= self.columns:
            return torch.tensor(list(itertools.permutations(range(self.columns), self.rows)))
        found = []
        for chosen in itertools.permutations(range(self.rows), self.columns):
            code = [-1] * self.rows
            for column, row in enumerate(chosen):
                code[row] = column
            found.append(code)
        return torch.tensor(found)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 1)
        yield cls(3, 3)
        yield cls(2, 4)
        yield cls(4, 3)
