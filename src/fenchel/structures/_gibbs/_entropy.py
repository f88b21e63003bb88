"""Entropies of Gibbs distributions, and divergences between two of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ... import _checks
from .._base import AbstractStructure
from .._checks import check_structure
from .._problem import ExtraScores, Problem
from ._scores import center, finite


def entropy(
    structure: AbstractStructure,
    scores: Tensor,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The entropy −Σ p(y) log p(y) of p(y) ∝ exp⟨scores, y⟩ over all structures y.

    It is log_partition − ⟨scores, marginals⟩, in float64, rounded to the type of the scores.

    Args:
        structure, scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
    Returns:
        (...), in nats, differentiable twice; zero for an instance without structures.
    Raises:
        NotImplementedError: for a structure without a tractable log-partition.

    >>> from fenchel import Bits
    >>> entropy(Bits(3), torch.zeros(3))  # 3 log 2
    tensor(2.0794)
    """
    check_structure(structure, AbstractStructure)
    problem = _widen(structure.problem(scores, extra_scores, lengths, mask))
    return _restore(problem, _cross_entropy(problem, problem))


def cross_entropy(
    structure: AbstractStructure,
    scores: Tensor,
    other_scores: Tensor,
    extra_scores: ExtraScores | None = None,
    other_extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The cross-entropy −Σ p(y) log q(y) of p(y) ∝ exp⟨scores, y⟩ and q(y) ∝ exp⟨other_scores, y⟩.

    Args:
        structure, lengths, mask: as for `fenchel.map_inference`.
        scores, extra_scores: those of p, likewise.
        other_scores, other_extra_scores: those of q, likewise; `other_scores` may be smaller and
            broadcast to `scores`. The extra scores of p and q may have different forms, and one of
            them may have none.
    Returns:
        (...), in nats, differentiable twice in all scores; +inf where q excludes a part that p
        uses; zero for an instance without structures under p.
    Raises:
        NotImplementedError: for a structure without a tractable log-partition.

    A Markov prior of tags is a q with transitions alone:

    >>> from fenchel import Sequence
    >>> prior = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    >>> tags = torch.zeros(3, 2)
    >>> cross_entropy(Sequence(3, 2), tags, torch.zeros(2), other_extra_scores=prior)
    tensor(3.1011)
    """
    p, q = _pair(structure, scores, other_scores, extra_scores, other_extra_scores, lengths, mask)
    return _restore(p, _cross_entropy(p, q))


def kl(
    structure: AbstractStructure,
    scores: Tensor,
    other_scores: Tensor,
    extra_scores: ExtraScores | None = None,
    other_extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The divergence Σ p(y) log(p(y)/q(y)) of p(y) ∝ exp⟨scores, y⟩ from
    q(y) ∝ exp⟨other_scores, y⟩.

    Args:
        structure, scores, other_scores, extra_scores, other_extra_scores, lengths, mask: as for
            `cross_entropy`.
    Returns:
        (...): the cross-entropy minus the entropy of p, likewise.
    Raises:
        NotImplementedError: for a structure without a tractable log-partition.

    >>> from fenchel import Choice
    >>> kl(Choice(2), torch.tensor([2.0, 0.0]), torch.zeros(2))
    tensor(0.3278)
    """
    p, q = _pair(structure, scores, other_scores, extra_scores, other_extra_scores, lengths, mask)
    return _restore(p, _cross_entropy(p, q, minus_entropy=True))


def _pair(
    structure: AbstractStructure,
    scores: Tensor,
    other_scores: Tensor,
    extra_scores: ExtraScores | None,
    other_extra_scores: ExtraScores | None,
    lengths: Any,
    mask: Tensor | None,
) -> tuple[Problem, Problem]:
    """The problems of p and q, in float64, with extra scores of one form."""
    check_structure(structure, AbstractStructure)
    p = _widen(structure.problem(scores, extra_scores, lengths, mask))
    other_scores = _checks.broadcast_to_scores("other_scores", other_scores, scores.shape)
    _checks.check_same_device("other_scores", other_scores, scores.device)
    q = _widen(structure.problem(other_scores, other_extra_scores, lengths, mask))
    if p.extra_scores is None and q.extra_scores is not None:
        p = replace(p, extra_scores=torch.zeros_like(q.extra_scores))
    if q.extra_scores is None and p.extra_scores is not None:
        q = replace(q, extra_scores=torch.zeros_like(p.extra_scores))
    if p.extra_scores is None or q.extra_scores is None:
        return p, q
    if p.extra_scores.shape[1:] != q.extra_scores.shape[1:]:
        return p.split_shared_scores(), q.split_shared_scores()
    return p, q


def _widen(problem: Problem) -> Problem:
    """The same problem in float64: entropies are small differences of large numbers."""
    extra = problem.extra_scores
    extra = None if extra is None else extra.double()
    return replace(problem, scores=problem.scores.double(), extra_scores=extra)


def _cross_entropy(p: Problem, q: Problem, minus_entropy: bool = False) -> Tensor:
    """−Σ p(y) log q(y), or Σ p(y) log(p(y)/q(y)), of each instance, (B)."""
    structure = p.structure
    u, v = structure.marginals(*structure.arguments(p.scores, p.extra_scores, p.lengths))
    of_p = center(structure, p.scores, u), p.extra_scores, p.lengths
    of_q = center(structure, q.scores, u), q.extra_scores, q.lengths
    total = structure.log_partition(*structure.arguments(*of_p))
    value = total if q is p else structure.log_partition(*structure.arguments(*of_q))
    if minus_entropy:
        value = value - total
    excluded = torch.zeros_like(value, dtype=torch.bool)
    for own, other, mean in zip(of_p, of_q, (u, v), strict=False):
        if own is None or other is None or mean is None:
            continue
        score = finite(other) - finite(own) if minus_entropy else finite(other)
        value = value - (score * mean).flatten(1).sum(1)
        excluded = excluded | ((other == -torch.inf) & (mean > 0)).flatten(1).any(1)
    value = torch.where(excluded, torch.inf, value)
    return torch.where(total == -torch.inf, 0.0, value)


def _restore(problem: Problem, value: Tensor) -> Tensor:
    """Values (B) that are at least zero but for rounding, in the form of the user's scores."""
    return problem.restore_batch(value + (value.clamp(min=0.0) - value).nan_to_num().detach())
