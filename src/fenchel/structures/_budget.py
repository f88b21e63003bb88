"""At most, or exactly, k of d entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import budget as ops
from ..ops._structure import Operators
from ..ops.ksubset import ksubset
from ._base import AbstractStructure
from ._projection import with_derivative
from ._vector import VectorStructure, mask_rows


@final
@dataclass(frozen=True)
class Budget(VectorStructure):
    """At most, or exactly, k of d entries.

    The scores are (d,). A code has 1 for each entry that is chosen, else 0. The best choice has the
    k largest scores; if fewer are allowed, only those above zero. Marginals are a dynamic program
    in O(dk).

    Args:
        d: the number of entries, or the largest in a ragged batch.
        k: how many may be chosen, 0 ≤ k ≤ d.
        exact: whether exactly k must be chosen.

    >>> from fenchel import map_inference
    >>> map_inference(Budget(4, 2), torch.tensor([1.0, -1.0, 3.0, 2.0])).codes
    tensor([0, 0, 1, 1])
    """

    name: ClassVar[str] = "budget"

    k: int
    exact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.check_size("k", self.k, minimum=0)
        if self.k > self.d:
            raise ValueError(f"`k` must be at most d = {self.d}, got {self.k}.")

    @property
    def oracle(self) -> str:
        return "budget"

    def option(self, extra_scores: Tensor | None) -> int:
        return 2 * self.k + self.exact

    def map_operator(self) -> Callable[..., Any]:
        return ops.map_inference

    def inference_operators(self) -> Operators | None:
        return ops.inference

    def is_valid(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        count = (codes == 1).sum(1)
        return count == self.k if self.exact else count <= self.k

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = mask_rows(scores, lengths)
        num_allowed = (rows > -torch.inf).sum(-1, keepdim=True).to(rows.dtype)
        y = ksubset(rows.detach(), num_allowed.clamp(max=self.k), 2.0)
        if self.exact:
            y = torch.where(num_allowed < self.k, 0.0, y)
            return with_derivative(torch.where(rows.isnan(), torch.nan, y), rows, fixed_sum=True)
        unbudgeted = rows.clamp(0, 1)
        over_budget = unbudgeted.sum(-1, keepdim=True) > self.k
        y = torch.where(over_budget | unbudgeted.isnan(), y, unbudgeted)
        return with_derivative(y, rows, over_budget)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 1)
        yield cls(5, 2)
        yield cls(5, 3, exact=True)
        yield cls(4, 0)
        yield cls(4, 4)
