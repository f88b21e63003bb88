"""Copies of the variables of a graph for its factors, and the factors' projections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...ops.sparsemap.solution import Limits
from .._factor_graph import GraphProblem, Group
from .._factors import Pair, bounded, negate
from .._problem import Form, Problem
from .._sparsemap import solve as solve_factor

_LEAST_RESIDUAL = 1e-6
"""How large a residual must be to prove anything; marginals are between 0 and 1."""
FACTOR_LIMITS = Limits(tol=1e-11, max_iter=10_000)
"""Those of the factors' own solvers."""


@dataclass(eq=False)
class Consensus:
    """Copies of variables for the factors of a graph, and the factors' projections.

    Args:
        problem: the scores.
        scores: (B, n) in float64, the problem's.
        extra_scores: (B, m) in float64, or None.
    """

    problem: GraphProblem
    scores: Tensor
    extra_scores: Tensor | None

    def __post_init__(self) -> None:
        self.groups = tuple(self.problem.graph.groups)
        none = torch.zeros(0, dtype=torch.int64)
        self.index = torch.cat([none, *(group.index.flatten() for group in self.groups)])
        self.degree = torch.bincount(self.index, minlength=self.scores.shape[1]).double()
        self.forbidden = self.scores == -torch.inf
        self.forbidden_copies = self.forbidden[:, self.index]
        self._starts: list[Any] = [None] * len(self.groups)

    def select(self, rows: Tensor) -> Consensus:
        """The same for some of the instances."""
        extra = None if self.extra_scores is None else self.extra_scores[rows]
        return Consensus(self.problem, self.scores[rows], extra)

    def copy(self, u: Tensor) -> Tensor:
        """C u: the variables (B, n) that each factor sees, (B, E)."""
        return u[:, self.index]

    def add(self, copies: Tensor) -> Tensor:
        """Cᵀ p: the sum of copies (B, E) of each variable, (B, n)."""
        return copies.new_zeros(len(copies), len(self.degree)).index_add(1, self.index, copies)

    def mean(self, copies: Tensor, free: Tensor) -> Tensor:
        """The mean of the copies of each variable; that of `free` where there is none."""
        mean = self.add(copies) / self.degree.clamp(min=1)
        return torch.where(self.degree > 0, mean, torch.where(self.forbidden, 0.0, free))

    def shift(self, u: Tensor, multipliers: Tensor) -> Tensor:
        """The scores (B, E) of the factors' next subproblems."""
        shifted = self.copy(u) - multipliers
        return torch.where(self.forbidden_copies, -torch.inf, shifted)

    def project(
        self, scores: Tensor, extra_scores: Tensor | None, warm: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The factors' SparseMAP marginals (B, E), and those of extra scores, (B, m)."""
        pieces = self.extra_pieces(extra_scores)
        found, extras, start = [], [], 0
        for k, (group, extra) in enumerate(zip(self.groups, pieces, strict=True)):
            size = group.index.numel()
            own = self.group_scores(group, scores[:, start : start + size])
            p, v = self._project_group(k, group, own, extra, warm)
            p = p.reshape(len(scores), size)
            if group.negated is not None:
                p = torch.where(group.negated.flatten(), 1 - p, p)
            found.append(p)
            if v is not None:
                extras.append(v.reshape(len(scores), -1))
            start += size
        return torch.cat(found, 1) if found else scores, torch.cat(extras, 1) if extras else None

    def group_scores(self, group: Group, scores: Tensor) -> Tensor:
        """The scores (B · F, *shape) of the factors of a group, from those of its variables."""
        rows = scores.reshape(-1, group.index[0].numel())
        if group.negated is not None:
            rows = negate(rows, group.negated.flatten(1).repeat(len(scores), 1))
        return rows.reshape(-1, *group.factor.shape)

    def extra_pieces(self, extra_scores: Tensor | None) -> list[Tensor | None]:
        """The extra scores of each group, (B, F, …), None for none."""
        if extra_scores is None:
            return [None] * len(self.groups)
        given = iter(self.problem.split_extra(extra_scores))
        return [next(given) if group.factor.extra_names else None for group in self.groups]

    def _project_group(
        self, k: int, group: Group, scores: Tensor, extra: Tensor | None, warm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """SparseMAP of B · F factors of one kind."""
        factor, v = group.factor, None
        if isinstance(factor, Pair):
            coupling = scores.new_zeros(len(scores)) if extra is None else extra.flatten(0, 1)
            p, v = factor.project_with_extra(scores, coupling.unsqueeze(-1))
            v = None if extra is None else v
        elif factor.has_projection and extra is None:
            p = factor.project(scores)
        else:
            p, v = self._solve_group(k, group, scores, extra, warm)
        return p, v

    def _solve_group(
        self, k: int, group: Group, scores: Tensor, extra: Tensor | None, warm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The same by the factors' own solver."""
        problem = factor_problem(group, scores, extra)
        start = self._starts[k] if warm else None
        posterior = solve_factor(problem, "active_set", FACTOR_LIMITS, False, start)
        if warm:
            self._starts[k] = posterior
        return posterior.marginals, None if extra is None else posterior.extra

    def is_infeasible(self, copies: Tensor, u: Tensor) -> Tensor:
        """Whether the residual p − C u proves that no u satisfies all factors, (B).

        If δ has Σ_f C_fᵀ δ_f = 0, then Σ_f ⟨δ_f, C_f u⟩ = 0 for all u. There is no solution if the
        structures of the factors all have a Σ_f ⟨δ_f, p_f⟩ above zero. A δ that is as small as
        rounding proves nothing, because its own sums round.
        """
        delta = copies - self.copy(u)
        delta = torch.where(self.forbidden_copies, 0.0, delta)
        allowed = self.add((~self.forbidden_copies).double()).clamp(min=1)
        delta = delta - self.copy(self.add(delta) / allowed)
        size = delta.abs().amax(1, keepdim=True) if delta.shape[1] else delta.new_ones(1)
        delta = delta / torch.where(size > 0, size, 1.0)
        scores = torch.where(self.forbidden_copies, -torch.inf, -delta)
        extra = self.extra_scores
        extra = None if extra is None else torch.where(extra == -torch.inf, extra, 0.0)
        best = self.best_value(scores, extra)
        is_large = size.expand(len(scores), 1).squeeze(1) > _LEAST_RESIDUAL
        terms = 1 + delta.shape[1]
        has_none = best < -2 * terms  # of a factor all structures are forbidden: |δ| is at most 1
        return has_none | (is_large & (best < -1e-9 * terms))

    def best_value(self, scores: Tensor, extra_scores: Tensor | None) -> Tensor:
        """The largest Σ_f ⟨s_f, p_f⟩ + ⟨φ_f, v_f⟩ over the structures of all factors, (B)."""
        best, start = scores.new_zeros(len(scores)), 0
        for group, piece in zip(self.groups, self.extra_pieces(extra_scores), strict=True):
            end = start + group.index.numel()
            best = best + self._best_value(group, scores[:, start:end], piece)
            start = end
        return best

    def _best_value(self, group: Group, scores: Tensor, extra: Tensor | None) -> Tensor:
        """The largest Σ_f ⟨s_f, p_f⟩ over the structures of the factors of a group, (B)."""
        own = scores.reshape(-1, group.index[0].numel())
        offset = own.new_zeros(len(own))
        if group.negated is not None:
            flat = group.negated.flatten(1).repeat(len(scores), 1)
            finite = bounded(own)
            offset = torch.where(flat, finite, 0.0).sum(1)
            own = torch.where(flat, -finite, own)
        problem = factor_problem(group, own.reshape(-1, *group.factor.shape), extra)
        value = group.factor.best_vertices(problem).value + offset
        return value.reshape(len(scores), group.count).sum(1)


def factor_problem(group: Group, scores: Tensor, extra: Tensor | None) -> Problem:
    """The problem of B · F factors with extra scores (B, F, …)."""
    problem = group.factor.problem(scores)
    if extra is None:
        return problem
    extra = extra.flatten(0, 1)
    others = (None,) * (len(group.factor.extra_names) - 1)
    merged = group.factor.merge_extra(problem.scores, (extra, *others))
    form = Form((tuple(extra.shape[1:]), *others), as_tuple=False)
    return replace(problem, extra_scores=merged, form=form)
