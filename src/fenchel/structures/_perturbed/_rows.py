"""The scores of a batch as rows, and the best structures of many points near them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...ops.sequence import reference
from .._factor_graph import GraphProblem
from .._problem import Problem
from .._sequence import Sequence


class Best(NamedTuple):
    """The best structures of S points of each of B instances."""

    y: Tensor
    """(S, B, D): their parts and extra parts"""
    codes: Tensor
    """(S, B, positions), or the indicators (S, B, *shape) of a structure without codes"""
    value: Tensor
    """(S, B): their scores"""


class Rows:
    """A problem whose scores and extra scores are one row of D numbers, in float64.

    Args:
        problem: the scores.
    """

    theta: Tensor
    """(B, D), differentiable: the scores, then the extra scores of each instance"""

    def __init__(self, problem: Problem) -> None:
        if problem.form is None and not isinstance(problem, GraphProblem):
            problem = replace(problem, extra_scores=None)  # zeros that the user did not give
        self.problem = problem
        scores, extra = problem.scores.flatten(1), problem.extra_scores
        if extra is not None:
            own = extra.expand(len(scores), *extra.shape[1:]).reshape(len(scores), -1)
            scores = torch.cat([scores, own], 1)
        self.theta = scores.double()

    @cached_property
    def is_given(self) -> Tensor:
        """(1, D): which of these the user gave; other extra scores are zero."""
        problem, form = self.problem, self.problem.form
        ones = torch.ones_like(self.theta[:1], dtype=torch.bool)
        size = math.prod(problem.structure.shape)
        if form is None or problem.extra_scores is None:
            return ones
        like = problem.scores.new_zeros(1, *problem.structure.shape)
        pieces = tuple(None if own is None else like.new_ones(1, *own) for own in form.shapes)
        merged = problem.structure.merge_extra(like, pieces)
        return torch.cat([ones[:, :size], merged.flatten(1) > 0], 1)  # type: ignore[union-attr]

    @cached_property
    def is_used(self) -> Tensor:
        """(B, D): which of these a structure may use."""
        return self.is_inside & (self.theta.detach() != -torch.inf)

    @cached_property
    def is_inside(self) -> Tensor:
        """(B, D): which of these are an instance's own."""
        problem, size = self.problem, math.prod(self.problem.structure.shape)
        given = self.is_given.expand_as(self.theta)
        scores, extra = given[:, :size], given[:, size:]
        if problem.lengths is not None:
            scores = scores & problem.structure.length_mask(problem.lengths).flatten(1)
        if isinstance(problem.structure, Sequence) and problem.extra_scores is not None:
            extra = extra & self._neighbours(problem.structure, problem.extra_scores)
        return torch.cat([scores, extra], 1)

    def _neighbours(self, structure: Sequence, extra_scores: Tensor) -> Tensor:
        """(1 or B, E): all extra scores but the transitions behind the end of an instance."""
        transitions, *_ = reference.split(extra_scores, *structure.shape)
        pairs = transitions.shape[1] if transitions.ndim == 4 else 1
        lengths = self.problem.lengths
        if lengths is None:
            lengths = torch.tensor([[structure.length]], device=self.theta.device)
        inside = torch.arange(pairs, device=lengths.device) < lengths - 1
        inside = inside.repeat_interleave(structure.tags**2, 1)
        ends = math.prod(extra_scores.shape[1:]) - inside.shape[1]
        return pad(inside, (ends, 0), value=True)

    def at(self, points: Tensor) -> Problem:
        """The problem with the scores of points (N, D), N a multiple of B, instance by instance."""
        problem, structure = self.problem, self.problem.structure
        size, copies = math.prod(structure.shape), len(points) // max(1, len(self.theta))
        extra, lengths = problem.extra_scores, problem.lengths
        return replace(
            problem,
            scores=points[:, :size].reshape(-1, *structure.shape),
            extra_scores=None if extra is None else points[:, size:].reshape(-1, *extra.shape[1:]),
            lengths=None if lengths is None else lengths.repeat(copies, 1),
            batch=torch.Size((len(points),)),
        )

    @torch.no_grad()
    def solve(self, points: Tensor) -> Best:
        """The best structures of points (S, B, D)."""
        lead = points.shape[:2]
        problem = self.at(points.flatten(0, 1))
        found: Any = problem.structure.best_vertices(problem)
        y, extra = found.indicator.double(), problem.extra_scores
        codes = y if found.codes is None else found.codes
        parts = y.flatten(1)
        if extra is not None:
            used = torch.zeros_like(extra) if found.extra is None else found.extra
            parts = torch.cat([parts, used.double().flatten(1)], 1)
        return Best(
            parts.reshape(points.shape),
            codes.reshape(*lead, *codes.shape[1:]),
            found.value.double().reshape(lead),
        )

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows (B, D) as (B, *shape) and as the extra scores, (B, …)."""
        shape, extra = self.problem.structure.shape, self.problem.extra_scores
        size = math.prod(shape)
        own = None if extra is None else rows[:, size:].reshape(-1, *extra.shape[1:])
        return rows[:, :size].reshape(-1, *shape), own
