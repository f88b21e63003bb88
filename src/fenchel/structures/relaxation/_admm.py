"""Consensus ADMM over the factors of a graph.

The problem: maximize ⟨θ, u⟩ + Σ_f ⟨φ_f, v_f⟩ − κ/2 ‖u‖², where the part C_f u of u that factor f
sees, with v_f, is a mean of structures of f. κ is 1 for SparseMAP and 0 for a linear program. Each
factor has a copy p_f of C_f u. A round, for a step ρ and scaled multipliers λ_f:

    p_f = the SparseMAP of factor f for the scores C_f u − λ_f and extra scores φ_f / ρ
    u   = (θ + ρ Σ C_fᵀ(p_f + λ_f)) / (κ + ρ · how many factors see the variable)
    λ_f = λ_f + p_f − C_f u
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops import factor_graph as ops
from ...ops.sparsemap.solution import Limits
from ._consensus import Consensus
from ._native import describe

RELAXATION = 1.6
"""Over-relaxation of the copies, between 1 and 2."""
BALANCE = 5.0
"""The ratio of residuals beyond which the step changes."""
PERIOD = 10
"""How many rounds have the same step, at first; each change makes it longer by a half."""
FIRST_CHECK = 100
"""After how many rounds a proof that there is no solution is first looked for; then after twice as
many, and so on. Where scores forbid something, the first round is checked, too."""
ROUNDING = 1e-14
"""The smallest dual residual that rounding allows, in units of the step."""


class State(NamedTuple):
    """Where the method is, per instance; all in float64 on the CPU."""

    u: Tensor
    """(B, n)"""
    multipliers: Tensor
    """(B, E), scaled: one for each variable of each factor"""
    step: Tensor
    """(B, 1): ρ"""


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
    extra = consensus.extra_scores
    forbids = bool(consensus.forbidden.any() or (extra is not None and (extra == -torch.inf).any()))
    graph = describe(consensus)
    residuals = (state.step.squeeze(1), state.step.squeeze(1))  # without a meaning yet
    first, last = 1, 1 if forbids else FIRST_CHECK
    while True:
        last = min(last, limits.max_iter)
        settings = ops.Settings(
            curvature, limits.tol, RELAXATION, BALANCE, ROUNDING, PERIOD, first, last
        )
        if graph is None:
            now = _run_rounds(consensus, settings, state, residuals)
        else:
            now = _run_native_rounds(graph, consensus, settings, state, residuals)
        if forbids or not now.converged.all():
            infeasible = consensus.is_infeasible(now.copies, now.state.u)
            now = now._replace(infeasible=infeasible, converged=now.converged & ~infeasible)
        whole = now if whole is None else _write(whole, rows, now)
        left = (~(now.converged | now.infeasible)).nonzero().flatten()
        if not len(left) or last == limits.max_iter:
            return whole
        if len(left) < len(rows):
            rows, consensus = rows[left], consensus.select(left)
        state = State(*(x[left] for x in now.state))
        residuals = now.primal[left], now.dual[left]
        first, last = last + 1, max(FIRST_CHECK, 2 * last)


def _run_native_rounds(
    graph: ops.Graph,
    consensus: Consensus,
    settings: ops.Settings,
    state: State,
    residuals: tuple[Tensor, Tensor],
) -> Outcome:
    """`_run_rounds` by the library, one instance after the other, each until it has converged."""
    scores, extra = consensus.scores, consensus.extra_scores
    given = scores.new_zeros(len(scores), 0) if extra is None else extra
    found = ops.run_rounds(graph, settings, scores, given, state, residuals)
    u, multipliers, step, copies, extras, shifted, primal, dual, count, converged = found
    extras = None if extra is None else extras
    state, infeasible = State(u, multipliers, step), torch.zeros_like(converged)
    return Outcome(copies, extras, state, shifted, primal, dual, count, converged, infeasible)


def _run_rounds(
    consensus: Consensus,
    settings: ops.Settings,
    state: State,
    residuals: tuple[Tensor, Tensor],
) -> Outcome:
    """Rounds `first` to `last`, by the factors' own functions in Python.

    Args:
        consensus: the graph and its scores.
        settings: how the rounds go.
        state: where to start.
        residuals: both, (B), after the round before the first.
    """
    rows, whole = torch.arange(len(consensus.scores)), None
    primal, dual = residuals
    period = next_change = settings.period
    while next_change < settings.first - 1:
        period = period * 3 // 2
        next_change += period
    for iteration in range(settings.first, settings.last + 1):
        if iteration - 1 == next_change:
            state = _balance(state, primal, dual)
            period = period * 3 // 2
            next_change += period
        shifted = consensus.shift(state.u, state.multipliers)
        extra = consensus.extra_scores
        extra = None if extra is None else extra / state.step
        copies, extras = consensus.project(shifted, extra, warm=True)
        state, primal, dual = _update(consensus, settings.curvature, state, copies)
        reachable = (ROUNDING * state.step.squeeze(1)).clamp(min=settings.tol)
        done = (primal <= settings.tol) & (dual <= reachable)
        if whole is not None and iteration < settings.last and 4 * done.sum() <= len(done):
            continue
        count, none = torch.full_like(rows, iteration), torch.zeros_like(done)
        now = Outcome(copies, extras, state, shifted, primal, dual, count, done, none)
        whole = now if whole is None else _write(whole, rows, now)
        left = (~done).nonzero().flatten()
        if not len(left):
            break
        if len(left) < len(rows):
            rows, consensus = rows[left], consensus.select(left)
            state = State(*(x[left] for x in state))
            primal, dual = primal[left], dual[left]
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
