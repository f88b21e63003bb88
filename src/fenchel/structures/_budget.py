"""Choices of k of d entries."""

from __future__ import annotations

import itertools
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
from ._coded import entries
from ._projection import follow
from ._vector import VectorStructure


@final
@dataclass(frozen=True)
class Budget(VectorStructure):
    """At most, or exactly, k of d entries.

    The scores are (d,). A code says of each entry whether it is chosen, 0 or 1. The best choice is
    that of the k largest scores, those above zero if there may be fewer; marginals are a dynamic
    program in O(dk).

    Args:
        d: the number of entries, or the largest in a ragged batch.
        k: how many may be chosen, 0 ≤ k ≤ d.
        exact: whether there must be k.

    >>> from fenchel import map_inference
    >>> map_inference(Budget(4, 2), torch.tensor([1.0, -1.0, 3.0, 2.0])).codes
    tensor([0, 0, 1, 1])
    """

    name: ClassVar[str] = "budget"

    k: int
    exact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.size("k", self.k, least=0)
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

    def parts(self, codes: Tensor) -> Tensor:
        return torch.where(codes == 1, torch.arange(codes.shape[-1], device=codes.device), -1)

    def holds(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        count = (codes == 1).sum(1)
        return count == self.k if self.exact else count <= self.k

    def codes(self) -> Tensor:
        every = torch.tensor(list(itertools.product(range(2), repeat=self.d)))
        counts = every.sum(1)
        return every[counts == self.k if self.exact else counts <= self.k]

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = entries(scores, lengths, -torch.inf)
        loose = rows.clamp(0, 1)
        room = (rows > -torch.inf).sum(-1, keepdim=True).to(rows.dtype)
        y = ksubset(rows, room.clamp(max=self.k), 2.0)
        if self.exact:
            y = torch.where(room < self.k, 0.0, y)
            return follow(torch.where(rows.isnan(), torch.nan, y), rows, bound=True)
        bound = loose.sum(-1, keepdim=True) > self.k
        return follow(torch.where(bound | loose.isnan(), y, loose), rows, bound)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1, 1)
        yield cls(5, 2)
        yield cls(5, 3, exact=True)
        yield cls(4, 0)
        yield cls(4, 4)
