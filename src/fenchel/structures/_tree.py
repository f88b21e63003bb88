"""Dependency trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import projective_tree, tree
from ..ops._structure import Operators
from ._base import AbstractStructure
from ._coded import CodedStructure


@final
@dataclass(frozen=True)
class DependencyTree(CodedStructure):
    """A head for each of n words, another word or the root, without cycles.

    The scores are arcs (n, n), entry (head, modifier); the diagonal holds the scores of arcs from
    the root. A code is the head of each word, or the word itself if its head is the root.

    Args:
        n: the number of words, or the largest in a ragged batch.
        projective: whether every word between a head and its modifier must descend from the head.
        single_root: whether the root has only one modifier.

    MAP inference is the algorithm of Chu, Liu and Edmonds in O(n²), for a single root too, or
    Eisner's in O(n³). Marginals, by the Matrix-Tree theorem or by inside-outside, are O(n³) and
    right for scores of any size.

    >>> arcs = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.5, 0.0], [0.0, 0.0, 0.0]])
    >>> from fenchel import map_inference
    >>> map_inference(DependencyTree(3), arcs).codes
    tensor([1, 1, 0])

    References: edmonds1967optimum, eisner1996three, koo2007structured, smith2007probabilistic.
    """

    name: ClassVar[str] = "dependency_tree"
    options_dim: ClassVar[int | None] = -2
    lengths_of_dims: ClassVar[tuple[int, ...]] = (0, 0)

    n: int
    projective: bool = False
    single_root: bool = True

    def __post_init__(self) -> None:
        _checks.check_size("n", self.n)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, self.n

    @property
    def max_lengths(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def oracle(self) -> str:
        return "projective_tree" if self.projective else "tree"

    def option(self, extra_scores: Tensor | None) -> int:
        return int(self.single_root)

    def map_operator(self) -> Callable[..., Any]:
        return (projective_tree if self.projective else tree).map_inference

    def inference_operators(self) -> Operators | None:
        return (projective_tree if self.projective else tree).inference

    def is_valid(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        words = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
        heads = torch.where(codes < 0, words, codes)
        roots = ((heads == words) & (codes >= 0)).sum(1)
        ancestors = heads
        for _ in range(codes.shape[1].bit_length()):  # twice as far up each time
            ancestors = ancestors.gather(1, ancestors)
        acyclic = (heads.gather(1, ancestors) == ancestors).all(1)
        valid = super().is_valid(codes, lengths) & acyclic
        valid = valid & (roots == 1 if self.single_root else roots >= 1)
        if not self.projective:
            return valid
        # No two arcs cross; the root stands before the first word.
        ends = torch.stack([words, torch.where(heads == words, -1, heads)])
        left, right = (e.masked_fill(codes < 0, -2) for e in (ends.amin(0), ends.amax(0)))
        other_left, other_right = left.unsqueeze(1), right.unsqueeze(1)
        left, right = left.unsqueeze(2), right.unsqueeze(2)
        crossing = (left < other_left) & (other_left < right) & (right < other_right)
        return valid & ~crossing.flatten(1).any(1)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1)
        for single_root in (True, False):
            yield cls(4, single_root=single_root)
            yield cls(4, projective=True, single_root=single_root)
        yield cls(5)
