"""The k best members of a structure."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _checks
from .._base import AbstractStructure
from .._bits import Bits
from .._budget import Budget
from .._checks import check_structure
from .._choice import Choice
from .._coded import CodedStructure
from .._matching import Matching
from .._problem import ExtraScores, Problem
from .._sequence import Sequence
from .._tree import DependencyTree
from . import _partition, _sequences, _vectors
from ._scores import center, chunks, select

MAX_NUMBERS = 2**34
"""How many numbers a result may have: 128 GiB."""


class KBest(NamedTuple):
    """The k best structures of each instance, best first.

    >>> from fenchel import Sequence
    >>> best = k_best(Sequence(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.4]]), 2)
    >>> best.codes
    tensor([[0, 1],
            [0, 0]])
    >>> best.value
    tensor([1.4000, 1.0000])
    """

    codes: Tensor
    """(..., k, positions) in int64, as those of `fenchel.map_inference`; −1 behind the last."""
    value: Tensor
    """(..., k): their scores, differentiable; −inf behind the last."""


def k_best(
    structure: AbstractStructure,
    scores: Tensor,
    k: int,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> KBest:
    """The k structures y of each instance with the largest ⟨scores, y⟩, best first.

    Args:
        structure: one of the library's, but no `Custom`.
        scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
        k: how many. If an instance has fewer structures without forbidden parts, the rest has the
            value −inf and codes −1. With NaN or +inf all values are NaN.
    Returns:
        KBest: `codes` (..., k, positions) and `value` (..., k). The gradient of a value is the
        structure's indicator. Structures of equal score come in any order.
    Raises:
        NotImplementedError: for a structure without codes.
        TypeError, ValueError: for input of the wrong kind, shape or value.

    >>> from fenchel import Matching
    >>> best = k_best(Matching(2, 2), torch.tensor([[3.0, 1.0], [0.0, 1.0]]), 3)
    >>> best.codes[:2], best.value
    (tensor([[0, 1],
            [1, 0]]), tensor([4., 1., -inf]))

    Sequences take O(nm²k log k) time, budgets of b among d entries O(dbk log k). For trees and
    matchings the rest of the set is split into at most n parts after each of the k structures, and
    MAP inference finds the best of each part: O(kn) calls.

    References: murty1968algorithm, lawler1972procedure.
    """
    check_structure(structure, AbstractStructure)
    _checks.check_size("k", k)
    problem = structure.problem(scores, extra_scores, lengths, mask)
    if not isinstance(structure, CodedStructure):
        raise NotImplementedError(_no_k_best(structure))
    dim = structure.options_dim
    options = 2 if dim is None else structure.shape[dim] + 1  # with none
    most = min(k, options**structure.positions)
    _check_memory(structure, k, most, len(problem.scores))
    with torch.no_grad():
        first = structure.best_vertices(problem)
        best = first.value
        codes = torch.full((len(best), k, structure.positions), -1, device=best.device)
        scores = problem.scores
        if isinstance(structure, Sequence):
            scores = center(structure, scores.double(), first.indicator)
        arguments = scores, problem.extra_scores, problem.lengths
        for some in chunks(best.isfinite().nonzero().squeeze(1), _numbers(structure, most)):
            codes[some, :most] = _k_best(structure, *select(some, *arguments), most)
    value = _values(structure, problem, codes)
    value, order = torch.where(best.isnan().unsqueeze(1), torch.nan, value).sort(
        dim=1, descending=True, stable=True
    )
    codes = codes.gather(1, order.unsqueeze(2).expand_as(codes))
    return KBest(problem.restore_batch(codes), problem.restore_batch(value))


def _k_best(
    structure: CodedStructure,
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    k: int,
) -> Tensor:
    """Codes (B, k, positions) for instances that have a structure."""
    if isinstance(structure, Sequence) and extra_scores is not None:
        return _sequences.k_best(scores, extra_scores.double(), lengths, k)
    if isinstance(structure, Choice):
        return _vectors.k_best_choices(scores, lengths, k)
    if isinstance(structure, Bits):
        return _vectors.k_best_subsets(scores.double(), lengths, None, False, k)
    if isinstance(structure, Budget):
        return _vectors.k_best_subsets(scores.double(), lengths, structure.k, structure.exact, k)
    if isinstance(structure, (DependencyTree, Matching)):
        return _partition.k_best(structure, scores, lengths, k)
    raise NotImplementedError(_no_k_best(structure))


def _check_memory(structure: CodedStructure, k: int, most: int, count: int) -> None:
    """Raises if k structures for each of `count` instances, which have at most `most` of them, are
    more than any memory has room for."""
    limit = MAX_NUMBERS // (max(count, 1) * structure.positions)
    if k > limit:
        has = f" The structure has at most {most}." if most < k else ""
        raise ValueError(
            f"`k` must be at most {limit} for {count} instances of {structure}, since the result "
            f"has room for k of each; got {k}.{has}"
        )


def _no_k_best(structure: AbstractStructure) -> str:
    return f"{structure.name} has no algorithm for its k best; use MAP inference or SparseMAP."


def _numbers(structure: CodedStructure, k: int) -> int:
    """How many numbers an instance needs, about."""
    n, m = structure.positions, structure.shape[-1]
    if isinstance(structure, Sequence):
        return k * m * (n + m)
    if isinstance(structure, Bits):
        return k * n
    if isinstance(structure, Budget):
        return k * n * (structure.k + 1)
    return (k + n) * n * m


def _values(structure: CodedStructure, problem: Problem, codes: Tensor) -> Tensor:
    """The scores (B, k) in float64 of codes (B, k, positions); −inf where there is none."""
    value = _sum_at(problem.scores, structure.part_indices(codes))
    if problem.extra_scores is not None:
        indices = structure.extra_indices(codes, problem.extra_scores)
        if indices is not None:
            extra = problem.extra_scores
            value = value + _sum_at(extra.expand(len(codes), *extra.shape[1:]), indices)
    return torch.where((codes >= 0).any(2), value, -torch.inf)


def _sum_at(scores: Tensor, indices: Tensor) -> Tensor:
    """The sums (B, k) of flat scores (B, …) at the indices (B, k, P); −1 is none."""
    found = scores.flatten(1).gather(1, indices.clamp(min=0).flatten(1)).reshape(indices.shape)
    return torch.where(indices < 0, 0.0, found).double().sum(2)
