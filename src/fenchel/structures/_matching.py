"""Matchings of two sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from .. import _checks
from ..ops import matching as ops
from ._base import AbstractStructure
from ._coded import CodedStructure


@final
@dataclass(frozen=True)
class Matching(CodedStructure):
    """Pairs of rows and columns: each in at most one pair, and as many pairs as possible.

    The scores are (rows, columns). A code is the column of each row, −1 for a row without one. MAP
    inference is the algorithm of Jonker and Volgenant, O(n²m) for the smaller side n. Marginals are
    intractable: the partition function is a permanent.

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
    lengths_of_dims: ClassVar[tuple[int, ...]] = (0, 1)

    rows: int
    columns: int

    def __post_init__(self) -> None:
        _checks.check_size("rows", self.rows)
        _checks.check_size("columns", self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def max_lengths(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def oracle(self) -> str:
        return "matching"

    @property
    def intractable_message(self) -> str:
        return (
            "the log-partition of a matching is intractable: it is a permanent; use MAP inference "
            "or SparseMAP, or `fenchel.structures.Perturbed`, whose samples and marginals need MAP "
            "inference alone."
        )

    def option(self, extra_scores: Tensor | None) -> int:
        return 0

    def map_operator(self) -> Callable[..., Any]:
        return ops.map_inference

    def is_valid(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        num_pairs = min(self.shape) if lengths is None else lengths.amin(1)
        pairs = self.indicator(codes)
        if lengths is not None:
            pairs = pairs * self.length_mask(lengths)
        return (pairs.sum(1) <= 1).all(1) & (pairs.sum((1, 2)) == num_pairs)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 1)
        yield cls(3, 3)
        yield cls(2, 4)
        yield cls(4, 3)
