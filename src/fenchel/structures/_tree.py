"""Dependency trees."""

from __future__ import annotations

import itertools
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

    The scores are arcs (n, n), entry (head, modifier); the diagonal holds the root's score of each
    word. A code is the head of each word, the word itself if that is the root.

    Args:
        n: the number of words, or the largest in a ragged batch.
        projective: whether every word between a head and its modifier must hang on the head,
            directly or not.
        single_root: whether only one word hangs on the root.

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

    n: int
    projective: bool = False
    single_root: bool = True

    def __post_init__(self) -> None:
        _checks.size("n", self.n)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, self.n

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def oracle(self) -> str:
        return "projective_tree" if self.projective else "tree"

    def within(self, lengths: Tensor) -> Tensor:
        rows, columns = (
            torch.arange(n, device=lengths.device) < lengths[:, k : k + 1]
            for n, k in zip(self.shape, (0, 0), strict=True)
        )
        return rows.unsqueeze(2) & columns.unsqueeze(1)

    def option(self, extra_scores: Tensor | None) -> int:
        return int(self.single_root)

    def map_operator(self) -> Callable[..., Any]:
        return (projective_tree if self.projective else tree).map_inference

    def inference_operators(self) -> Operators | None:
        return (projective_tree if self.projective else tree).inference

    def parts(self, codes: Tensor) -> Tensor:
        words = torch.arange(codes.shape[-1], device=codes.device)
        return torch.where(codes < 0, -1, codes * self.n + words)

    def holds(self, codes: Tensor, lengths: Tensor | None) -> Tensor:
        words = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
        heads = torch.where(codes < 0, words, codes)
        roots = ((heads == words) & (codes >= 0)).sum(1)
        above = heads
        for _ in range(codes.shape[1].bit_length()):  # twice as far up each time
            above = above.gather(1, above)
        good = super().holds(codes, lengths) & (heads.gather(1, above) == above).all(1)
        good = good & (roots == 1 if self.single_root else roots >= 1)
        if not self.projective:
            return good
        # The root stands before the first word; no two arcs cross.
        ends = torch.stack([words, torch.where(heads == words, -1, heads)])
        low, high = (e.masked_fill(codes < 0, -2) for e in (ends.amin(0), ends.amax(0)))
        first, last = low.unsqueeze(2), high.unsqueeze(2)
        low, high = low.unsqueeze(1), high.unsqueeze(1)
        return good & ~((first < low) & (low < last) & (last < high)).flatten(1).any(1)

    def codes(self) -> Tensor:
        found = [
            heads for heads in itertools.product(range(self.n), repeat=self.n) if self._holds(heads)
        ]
        return torch.tensor(found)

    def _holds(self, heads: tuple[int, ...]) -> bool:
        roots = sum(head == word for word, head in enumerate(heads))
        if roots == 0 or (self.single_root and roots > 1):
            return False
        above = [_above(word, heads) for word in range(self.n)]
        if any(line is None for line in above):
            return False
        return not self.projective or all(
            head in (above[between] or ())
            for word, head in enumerate(heads)
            if word != head
            for between in range(min(word, head) + 1, max(word, head))
        )

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1)
        for single_root in (True, False):
            yield cls(4, single_root=single_root)
            yield cls(4, projective=True, single_root=single_root)
        yield cls(5)


def _above(word: int, heads: tuple[int, ...]) -> list[int] | None:
    """The words on the way from a word to the root, or None if it leads into a cycle."""
    line = [word]
    while heads[line[-1]] != line[-1]:
        line.append(heads[line[-1]])
        if len(line) > len(heads):
            return None
    return line
