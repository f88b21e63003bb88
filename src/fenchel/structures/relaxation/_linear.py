"""MAP inference of factor graphs: the linear relaxation, and a proof that it is solved."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from ...mappings._general import ConvergenceWarning
from ...ops.sparsemap.solution import Limits, inner
from .._factor_graph import GraphProblem
from .._problem import RelaxedVertices
from . import _admm
from ._consensus import Consensus
from ._instances import BEST_SIZE, doubles, overwrite, size_of, solvable, start_state

TOLERANCES = (1e-7, 1e-9, 1e-11, 1e-11)
"""Of both residuals, for scores of size `BEST_SIZE`: rounds start again where a gap is left."""
FINEST = 1e-4
"""The unit of a stage, at least, in that of the stage before."""
MAX_ROUNDS = 20_000
"""In all."""
GAP, RELATIVE_GAP = 1e-4, 1e-9
"""The largest gap of a solution: of scores below one, a share of the largest, GAP; of scores above
GAP / RELATIVE_GAP, the other share."""
INTEGRAL = 1e-4
"""How far from an integer a solution of the relaxation may be and count as one."""
EQUAL = 1e-5
"""How far an integral point may be from its projection and count as a structure."""


class Found(NamedTuple):
    """What the method found, per instance."""

    u: Tensor
    """(B, n)"""
    v: Tensor | None
    """(B, m)"""
    gap: Tensor
    """(B): how far at most the value is from that of the relaxation"""
    integral: Tensor
    infeasible: Tensor
    converged: Tensor


def relax(problem: GraphProblem) -> RelaxedVertices:
    """The linear relaxation of MAP inference, for a checked problem."""
    with torch.no_grad():
        scores, extra, bad = solvable(*doubles(problem))
        found = _solve(Consensus(problem, scores, extra))
        _warn_if_missed(found, bad)
        u, v = found.u, found.v
        if v is not None:
            v = torch.where(extra == -torch.inf, 0.0, v)  # type: ignore[operator]
            v = overwrite(v, bad, found.infeasible).to(problem.scores)
        u = overwrite(u, bad, found.infeasible).to(problem.scores)
        bad, failed = bad.to(u.device), (found.infeasible & ~bad).to(u.device)
        integral, converged = (x.to(u.device) & ~bad for x in (found.integral, found.converged))
    value = _value(problem.scores.flatten(1), problem.extra_scores, u, v)
    value = torch.where(failed, -torch.inf, torch.where(bad, torch.nan, value))
    flags = (problem.restore_batch(x) for x in (integral & ~failed, converged))
    return RelaxedVertices(u.reshape(problem.scores.shape), v, None, value, *flags)


def _value(scores: Tensor, extra: Tensor | None, u: Tensor, v: Tensor | None) -> Tensor:
    """⟨θ, u⟩ + ⟨φ, v⟩, (B)."""
    value = inner(u.nan_to_num(0.0), scores)
    if v is None or extra is None:
        return value
    return value + inner(v.nan_to_num(0.0), extra)


def _solve(consensus: Consensus) -> Found:
    """Rounds for scores in units of their size; then, where a gap is left, in units of the gap."""
    unit = _size(consensus) / BEST_SIZE
    state, rows = start_state(_scale(consensus, unit)), torch.arange(len(consensus.scores))
    whole = None
    for tol in TOLERANCES:
        limits = Limits(tol, MAX_ROUNDS // len(TOLERANCES))
        outcome = _admm.solve(_scale(consensus, unit), 0.0, limits, state)
        now = _finish(consensus, outcome, unit)
        whole = now if whole is None else _write(whole, rows, now)
        left = (~(now.converged | now.infeasible)).nonzero().flatten()
        if not len(left):
            break
        rows, consensus, unit = rows[left], consensus.select(left), unit[left]
        finer = now.gap[left].unsqueeze(1).abs() / BEST_SIZE
        finer = torch.minimum(unit, torch.maximum(finer, unit * FINEST))
        u, multipliers, step = (x[left] for x in outcome.state)
        multipliers = multipliers * (step * unit / finer)
        state, unit = _admm.State(u, multipliers, torch.ones_like(step)), finer
    assert whole is not None
    return whole


def _scale(consensus: Consensus, unit: Tensor) -> Consensus:
    """The same graph with scores in units (B, 1)."""
    extra = consensus.extra_scores
    extra = None if extra is None else extra / unit
    return Consensus(consensus.problem, consensus.scores / unit, extra)


def _finish(consensus: Consensus, outcome: _admm.Outcome, unit: Tensor) -> Found:
    """The solution with its gap, rounded to a structure of the graph where it is one."""
    u, v = consensus.mean(outcome.copies, outcome.state.u), outcome.extras
    rounded = u.round()
    integral = ((u - rounded).abs() <= INTEGRAL).all(1)
    if integral.any():
        integral = integral & _is_feasible(consensus, rounded)
    u = torch.where(integral.unsqueeze(1), rounded, u)
    if v is not None:
        near = integral.unsqueeze(1) & ((v - v.round()).abs() <= INTEGRAL)
        v = torch.where(near, v.round(), v)
    gap = _bound(consensus, outcome, unit) - _value(consensus.scores, consensus.extra_scores, u, v)
    size = _size(consensus).squeeze(1)
    small = torch.maximum(GAP * size.clamp(max=1), RELATIVE_GAP * size)
    closed = gap.abs() <= torch.maximum(small, _rounding(consensus))
    closed = closed & ~outcome.infeasible & (integral | (outcome.primal <= TOLERANCES[0]))
    return Found(u, v, gap, integral, outcome.infeasible, closed)


def _size(consensus: Consensus) -> Tensor:
    """The largest absolute score of each instance, (B, 1); one where all are zero."""
    size = size_of(consensus.scores, consensus.extra_scores)
    return torch.where(size > 0, size, 1.0)


def _is_feasible(consensus: Consensus, u: Tensor) -> Tensor:
    """Whether all factors have the integers u (B, n) that they see as a structure, (B)."""
    seen, extra = consensus.copy(u), consensus.extra_scores
    scores = torch.where(consensus.forbidden_copies, -torch.inf, seen)
    extra = None if extra is None else torch.where(extra == -torch.inf, extra, 0.0)
    nearest, _ = consensus.project(scores, extra)
    return ((nearest - seen).abs() <= EQUAL).all(1)


def _bound(consensus: Consensus, outcome: _admm.Outcome, unit: Tensor) -> Tensor:
    """A value (B) that no solution exceeds.

    For any μ with Σ_f C_fᵀ μ_f = θ it is the sum of max ⟨μ_f, p_f⟩ + ⟨φ_f, v_f⟩ over the structures
    of each factor. The multipliers are such a μ, up to rounding.
    """
    theta = torch.where(consensus.forbidden, 0.0, consensus.scores)
    mu = -unit * outcome.state.step * outcome.state.multipliers
    missing = (theta - consensus.add(mu)) / consensus.degree.clamp(min=1)
    mu = torch.where(consensus.forbidden_copies, -torch.inf, mu + consensus.copy(missing))
    free = torch.where(consensus.degree == 0, theta.clamp(min=0), 0.0).sum(1)
    return consensus.best_value(mu, consensus.extra_scores) + free


def _rounding(consensus: Consensus) -> Tensor:
    """What of a gap may be rounding, (B)."""
    sizes = torch.where(consensus.forbidden, 0.0, consensus.scores.abs()).sum(1)
    if consensus.extra_scores is not None:
        extra = consensus.extra_scores
        sizes = sizes + torch.where(extra == -torch.inf, 0.0, extra.abs()).sum(1)
    return 16 * torch.finfo(torch.float64).eps * sizes


def _write(whole: Found, rows: Tensor, now: Found) -> Found:
    """The results with those of some instances replaced, where their gap is smaller."""
    better = now.infeasible | (now.gap.abs() <= whole.gap[rows].abs())
    rows, now = rows[better], Found(*(None if x is None else x[better] for x in now))  # type: ignore[arg-type]
    pairs = zip(whole, now, strict=True)
    return Found(*(x if y is None else x.index_copy(0, rows, y) for x, y in pairs))  # type: ignore[union-attr]


def _warn_if_missed(found: Found, bad: Tensor) -> None:
    """Warns once for the batch if the gap of a solvable instance is not closed."""
    missed = ~(found.converged | found.infeasible | bad)
    if not bool(missed.any()):
        return
    warnings.warn(
        f"the values of {int(missed.sum())} of {missed.numel()} graphs may be wrong by up to "
        f"{float(found.gap[missed].abs().max()):.1e}, after {MAX_ROUNDS} rounds; `converged` says "
        "which. Where scores are large beside their differences, subtract what all competing "
        "variables have in common. A graph without any solution never converges.",
        ConvergenceWarning,
        stacklevel=5,
    )
