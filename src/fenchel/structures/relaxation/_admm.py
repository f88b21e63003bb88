"""Consensus ADMM over the factors of a graph.

The problem: maximize ⟨θ, u⟩ + Σ_f ⟨φ_f, v_f⟩ − κ/2 ‖u‖², where the part C_f u of u that factor f
sees, with v_f, is a mean of structures of f. κ is 1 for SparseMAP and 0 for a linear program. Each
factor has a copy p_f of C_f u. A round, for a step ρ and scaled multipliers λ_f:

    p_f = the SparseMAP of factor f for the scores C_f u − λ_f and extra scores φ_f / ρ
    u   = (θ + ρ Σ C_fᵀ(p_f + λ_f)) / (κ + ρ · how many factors see the variable)
    λ_f = λ_f + p_f − C_f u
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.sparsemap.solution import Limits
from .._factor_graph import GraphProblem, Group
from .._factors import Pair, bounded, negate
from .._problem import Form, Problem
from .._sparsemap import solve as solve_factor

RELAXATION = 1.6
"""Over-relaxation of the copies, between 1 and 2."""
BALANCE = 5.0
"""The ratio of residuals beyond which the step changes."""
PERIOD = 10
"""How many rounds have the same step, at first; each change makes it longer by a half."""
CHECK_PERIOD = 100
"""How many rounds pass between two searches for a proof that there is no solution."""
_LEAST_RESIDUAL = 1e-6
"""How large a residual must be to prove anything; marginals are between 0 and 1."""
ROUNDING = 1e-14
"""The smallest dual residual that rounding allows, in units of the step."""
FACTOR_LIMITS = Limits(tol=1e-11, max_iter=10_000)
"""Those of the factors' own solvers."""


class State(NamedTuple):
    """Where the method is, per instance; all in float64 on the CPU."""

    u: Tensor
    """(B, n)"""
    multipliers: Tensor
    """(B, E), scaled: one for each variable of each factor"""
    step: Tensor
    """(B, 1): ρ"""


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
        self._forbidden_copies = self.forbidden[:, self.index]
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

    def shift(self, state: State) -> Tensor:
        """The scores (B, E) of the factors' next subproblems."""
        shifted = self.copy(state.u) - state.multipliers
        return torch.where(self._forbidden_copies, -torch.inf, shifted)

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
        problem = _factor_problem(group, scores, extra)
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
        delta = torch.where(self._forbidden_copies, 0.0, delta)
        allowed = self.add((~self._forbidden_copies).double()).clamp(min=1)
        delta = delta - self.copy(self.add(delta) / allowed)
        size = delta.abs().amax(1, keepdim=True) if delta.shape[1] else delta.new_ones(1)
        delta = delta / torch.where(size > 0, size, 1.0)
        scores = torch.where(self._forbidden_copies, -torch.inf, -delta)
        extra = self.extra_scores
        extra = None if extra is None else torch.where(extra == -torch.inf, extra, 0.0)
        best, start = scores.new_zeros(len(scores)), 0
        for group, piece in zip(self.groups, self.extra_pieces(extra), strict=True):
            end = start + group.index.numel()
            best = best + self._best_value(group, scores[:, start:end], piece)
            start = end
        is_large = size.expand(len(scores), 1).squeeze(1) > _LEAST_RESIDUAL
        terms = 1 + delta.shape[1]
        has_none = best < -2 * terms  # of a factor all structures are forbidden: |δ| is at most 1
        return has_none | (is_large & (best < -1e-9 * terms))

    def _best_value(self, group: Group, scores: Tensor, extra: Tensor | None) -> Tensor:
        """The largest Σ_f ⟨s_f, p_f⟩ over the structures of the factors of a group, (B)."""
        own = scores.reshape(-1, group.index[0].numel())
        offset = own.new_zeros(len(own))
        if group.negated is not None:
            flat = group.negated.flatten(1).repeat(len(scores), 1)
            finite = bounded(own)
            offset = torch.where(flat, finite, 0.0).sum(1)
            own = torch.where(flat, -finite, own)
        problem = _factor_problem(group, own.reshape(-1, *group.factor.shape), extra)
        value = group.factor.best_vertices(problem).value + offset
        return value.reshape(len(scores), group.count).sum(1)


def _factor_problem(group: Group, scores: Tensor, extra: Tensor | None) -> Problem:
    """The problem of B · F factors with extra scores (B, F, …)."""
    problem = group.factor.problem(scores)
    if extra is None:
        return problem
    extra = extra.flatten(0, 1)
    others = (None,) * (len(group.factor.extra_names) - 1)
    merged = group.factor.merge_extra(problem.scores, (extra, *others))
    form = Form((tuple(extra.shape[1:]), *others), as_tuple=False)
    return replace(problem, extra_scores=merged, form=form)


class Outcome(NamedTuple):
    """How the method ended, per instance."""

    copies: Tensor
    """(B, E)"""
    extras: Tensor | None
    """(B, m)"""
    state: State
    shifted: Tensor
    """(B, E): the scores of the last subproblems"""
    primal: Tensor
    """(B): how far copies and variables differ"""
    dual: Tensor
    """(B): how far the last round moved the variables, in units of scores"""
    iterations: Tensor
    converged: Tensor
    infeasible: Tensor


def solve(consensus: Consensus, curvature: float, limits: Limits, state: State) -> Outcome:
    """Rounds until both residuals of each instance are at most `tol`, or `max_iter` of them.

    Args:
        consensus: the graph and its scores, without NaN and +inf.
        curvature: κ, 1 or 0.
        limits: when to end.
        state: where to start.
    """
    rows, whole = torch.arange(len(consensus.scores)), None
    period, next_change = PERIOD, PERIOD
    for iteration in range(1, limits.max_iter + 1):
        shifted = consensus.shift(state)
        extra = consensus.extra_scores
        extra = None if extra is None else extra / state.step
        copies, extras = consensus.project(shifted, extra, warm=True)
        state, primal, dual = _update(consensus, curvature, state, copies)
        reachable = (ROUNDING * state.step.squeeze(1)).clamp(min=limits.tol)
        converged = (primal <= limits.tol) & (dual <= reachable)
        infeasible = torch.zeros_like(converged)
        if iteration == 1 or iteration % CHECK_PERIOD == 0:
            infeasible = consensus.is_infeasible(copies, state.u)
            converged = converged & ~infeasible
        count = torch.full_like(rows, iteration)
        now = Outcome(copies, extras, state, shifted, primal, dual, count, converged, infeasible)
        done = converged | infeasible
        if (
            iteration == 1
            or done.all()
            or iteration == limits.max_iter
            or 4 * done.sum() > len(done)
        ):
            whole = now if whole is None else _write(whole, rows, now)
            left = (~done).nonzero().flatten()
            if not len(left):
                break
            if len(left) < len(rows):
                rows, consensus = rows[left], consensus.select(left)
                state = State(*(x[left] for x in state))
                primal, dual = primal[left], dual[left]
        if iteration == next_change:
            state = _balance(state, primal, dual)
            period = period * 3 // 2
            next_change += period
    assert whole is not None
    return whole


def _update(
    consensus: Consensus, curvature: float, state: State, copies: Tensor
) -> tuple[State, Tensor, Tensor]:
    """The variables and multipliers after the factors' subproblems, and both residuals."""
    u, multipliers, step = state
    seen = consensus.copy(u)
    relaxed = RELAXATION * copies + (1 - RELAXATION) * seen
    theta = torch.where(consensus.forbidden, 0.0, consensus.scores)
    total = theta + step * consensus.add(relaxed + multipliers)
    weight = curvature + step * consensus.degree
    free = theta.clamp(0, 1) if curvature else (theta > 0).double()
    updated = torch.where(consensus.degree > 0, total / weight.clamp(min=1e-300), free)
    updated = torch.where(consensus.forbidden, 0.0, updated)
    seen_now = consensus.copy(updated)
    multipliers = multipliers + relaxed - seen_now
    primal, dual = (copies - seen_now).abs(), step * (seen_now - seen).abs()
    if not copies.shape[1]:
        primal = dual = copies.new_zeros(len(copies), 1)
    return State(updated, multipliers, step), primal.amax(1), dual.amax(1)


def _balance(state: State, primal: Tensor, dual: Tensor) -> State:
    """A larger step where the primal residual is larger than the dual one, or a smaller one."""
    ratio = (primal / dual.clamp(min=1e-300)).sqrt().clamp(0.1, 10).unsqueeze(1)
    unbalanced = (ratio > BALANCE**0.5) | (ratio < BALANCE**-0.5)
    factor = torch.where(unbalanced, ratio, 1.0)
    step = state.step * factor
    return State(state.u, state.multipliers * state.step / step, step)


def _write(whole: Outcome, rows: Tensor, now: Outcome) -> Outcome:
    """The results with those of some instances replaced."""

    def merge(old: Any, new: Any) -> Any:
        if isinstance(old, State):
            return State(*map(merge, old, new))
        return old if old is None else old.index_copy(0, rows, new)

    return Outcome(*map(merge, whole, now))
