"""Scores of some of the instances, and of the same distribution with smaller numbers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .._base import AbstractStructure
from .._choice import Choice
from .._sequence import Sequence
from .._tree import DependencyTree

MAX_NUMBERS = 2**24
"""How many numbers an algorithm may keep at once, if it can do with so few."""


def chunks(indices: Tensor, numbers: int) -> Iterator[Tensor]:
    """The indices (N,) in pieces, if each of them needs so many numbers."""
    if len(indices):
        yield from indices.split(max(1, MAX_NUMBERS // numbers))


def select(
    instances: Tensor, scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The scores (B, …), extra scores (B or 1, …) and lengths (B, k) of some instances, (N,)."""
    if extra_scores is not None and len(extra_scores) == len(scores):
        extra_scores = extra_scores[instances]
    return scores[instances], extra_scores, None if lengths is None else lengths[instances]


def center(structure: AbstractStructure, scores: Tensor, u: Tensor) -> Tensor:
    """Scores (B, *shape) less that of the most likely option of each position.

    If each position takes one option, the distribution is the same, and sums over likely structures
    are small and keep their digits. Other structures keep their scores.

    Args:
        structure: the set of structures.
        scores: (B, *shape).
        u: (B, *shape), their marginals, or the indicator of the best structure.
    """
    if not isinstance(structure, (Sequence, DependencyTree, Choice)):
        return scores
    dim = -2 if isinstance(structure, DependencyTree) else -1
    likely = scores.detach().gather(dim, u.detach().argmax(dim, keepdim=True))
    return scores - finite(likely)


def finite(scores: Tensor) -> Tensor:
    """Scores with zeros for those that are not finite."""
    return scores.nan_to_num(0.0, 0.0, 0.0)
