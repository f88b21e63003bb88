"""SparseMAP and MAP inference of factor graphs: their linear relaxations, and derivatives."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ...mappings._general import ConvergenceWarning
from ...ops.sparsemap.solution import Limits, inner
from .._checks import NO_VMAP, check_start
from .._factor_graph import GraphProblem
from .._posterior import GraphPosterior, GraphSolution, Posterior
from .._problem import RelaxedVertices
from . import _admm
from ._jacobian import Jacobian

RELAXATION_LIMITS = Limits(tol=1e-7, max_iter=20_000)
"""Those of `map_inference`, for scores of size `BEST_SIZE`."""
BEST_SIZE = 5.0
"""The size of scores, in units of the step, with which the method is fastest."""
INTEGRAL = 1e-4
"""How far from an integer a solution of the relaxation may be and count as one."""


def lp_sparsemap(
    problem: GraphProblem, limits: Limits, start: Posterior | None = None
) -> GraphPosterior:
    """SparseMAP of the relaxation of a graph, for a checked problem."""
    scores = problem.scores.flatten(1).to("cpu", torch.float64)
    extra = problem.extra_scores
    extra = None if extra is None else extra.to("cpu", torch.float64)
    state = None
    if start is not None:
        check_start(start, GraphPosterior, problem)
        state = start._solution.outcome.state  # type: ignore[attr-defined]
        if state.multipliers.shape[1] != sum(x.index.numel() for x in problem.graph.groups):
            raise ValueError(
                "`start` must be a result for the present factors of the graph; some were added "
                "after it. Solve the graph once without `start`."
            )
    found = _Found(problem, limits, state)
    u, v = Argmax.apply(scores, extra, found)  # type: ignore[misc]
    _warn_if_missed(found.outcome, found.solved, limits)
    marginals = u.reshape(problem.scores.shape)
    extras = None if extra is None else v
    return GraphPosterior(problem, GraphSolution(marginals, extras, found.consensus, found.outcome))


def relax(problem: GraphProblem) -> RelaxedVertices:
    """The linear relaxation of MAP inference, for a checked problem."""
    with torch.no_grad():
        scores = problem.scores.flatten(1).to("cpu", torch.float64)
        extra = problem.extra_scores
        extra = None if extra is None else extra.to("cpu", torch.float64)
        scores, extra, bad = _solvable(scores, extra)
        size = _size(scores, extra)
        size = torch.where(size > 0, size, 1.0) / BEST_SIZE
        consensus = _admm.Consensus(problem, scores / size, None if extra is None else extra / size)
        outcome = _admm.solve(consensus, 0.0, RELAXATION_LIMITS, _start(consensus))
        _warn_if_missed(outcome, ~(bad | outcome.infeasible), RELAXATION_LIMITS)
        u = consensus.mean(outcome.copies, outcome.state.u)
        v = outcome.extras
        integral = ((u - u.round()).abs() <= INTEGRAL).all(1)
        u = torch.where(integral.unsqueeze(1), u.round(), u)
        if v is not None:
            near = (v - v.round()).abs() <= INTEGRAL
            v = torch.where(integral.unsqueeze(1) & near, v.round(), v)
            v = torch.where(extra == -torch.inf, 0.0, v)
        u = _overwrite(u, bad, outcome.infeasible).to(problem.scores)
        v = None if v is None else _overwrite(v, bad, outcome.infeasible).to(problem.scores)
        integral = integral & ~bad & ~outcome.infeasible
        failed = torch.where(outcome.infeasible & ~bad, -torch.inf, 0.0).to(u)
    value = inner(u, problem.scores.flatten(1)) + failed
    if v is not None and problem.extra_scores is not None:
        value = value + inner(v, problem.extra_scores)
    flags = (problem.restore_batch(x.to(u.device)) for x in (integral, outcome.converged & ~bad))
    return RelaxedVertices(u.reshape(problem.scores.shape), v, None, value, *flags)


class _Found:
    """A solver, and what it finds; `Argmax` fills it."""

    consensus: _admm.Consensus
    outcome: _admm.Outcome
    solved: Tensor

    def __init__(self, problem: GraphProblem, limits: Limits, state: _admm.State | None) -> None:
        self.problem, self.limits, self.state = problem, limits, state

    def solve(self, scores: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """The marginals (B, n) and those of extra scores, (B, m)."""
        scores, extra, bad = _solvable(scores.detach(), None if extra is None else extra.detach())
        self.consensus = _admm.Consensus(self.problem, scores, extra)
        state = _start(self.consensus) if self.state is None else self.state
        outcome = _admm.solve(self.consensus, 1.0, self.limits, state)
        self.solved = ~(bad | outcome.infeasible)
        self.outcome = outcome._replace(converged=outcome.converged & ~bad)
        u = self.consensus.mean(outcome.copies, outcome.state.u)
        v = scores.new_zeros(len(scores), 0) if outcome.extras is None else outcome.extras
        return _overwrite(u, bad, outcome.infeasible), _overwrite(v, bad, outcome.infeasible)

    @cached_property
    def jacobian(self) -> Jacobian:
        return Jacobian(self.consensus, self.outcome)


class Argmax(Function):
    """Scores (B, n) and extra scores (B, m) to their marginals."""

    @staticmethod
    def forward(scores: Tensor, extra: Tensor | None, found: _Found) -> tuple[Tensor, Tensor]:
        return found.solve(scores, extra)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.found = inputs[2]

    @staticmethod
    def backward(ctx: Any, u: Tensor, v: Tensor) -> tuple:
        scores, extra = Product.apply(u, v, ctx.found)  # type: ignore[misc]
        needs = ctx.needs_input_grad
        return scores if needs[0] else None, extra if needs[1] else None, None

    @staticmethod
    def jvp(ctx: Any, scores: Tensor, extra: Tensor | None, _: None) -> tuple:
        extra = scores.new_zeros(len(scores), 0) if extra is None else extra
        return Product.apply(scores, extra, ctx.found)  # type: ignore[return-value]

    @staticmethod
    def vmap(*_: Any) -> None:
        raise NotImplementedError(NO_VMAP)


class Product(Function):
    """The Jacobian times a vector. It is symmetric, and constant near the solution, so that the
    derivative of this linear function is the function itself."""

    @staticmethod
    def forward(u: Tensor, v: Tensor, found: _Found) -> tuple[Tensor, Tensor]:
        scores, extra = found.jacobian.multiply(u, v)
        solved = found.solved.unsqueeze(1)
        return torch.where(solved, scores, 0.0), torch.where(solved, extra, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.found = inputs[2]

    @staticmethod
    def backward(ctx: Any, u: Tensor, v: Tensor) -> tuple:
        return (*Product.apply(u, v, ctx.found), None)  # type: ignore[misc]

    @staticmethod
    def jvp(ctx: Any, u: Tensor, v: Tensor, _: None) -> tuple:
        return Product.apply(u, v, ctx.found)  # type: ignore[return-value]

    @staticmethod
    def vmap(info: Any, in_dims: tuple, u: Tensor, v: Tensor, found: _Found) -> tuple:
        def row(x: Tensor, dim: int | None, k: int) -> Tensor:
            return x if dim is None else x.select(dim, k)

        rows = [
            Product.apply(row(u, in_dims[0], k), row(v, in_dims[1], k), found)
            for k in range(info.batch_size)
        ]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0, 0)


def _start(consensus: _admm.Consensus) -> _admm.State:
    """Zero multipliers, variables between 0 and 1, and a step for scores of this size."""
    theta = torch.where(consensus.forbidden, 0.0, consensus.scores)
    u = theta.clamp(0, 1)
    step = (_size(theta, consensus.extra_scores) / BEST_SIZE).clamp(min=1.0)
    return _admm.State(u, u.new_zeros(len(u), len(consensus.index)), step)


def _size(theta: Tensor, extra: Tensor | None) -> Tensor:
    """The largest absolute score of each instance, (B, 1)."""
    both = theta if extra is None else torch.cat([theta, extra], 1)
    return torch.where(both.isinf(), 0.0, both).abs().amax(1, keepdim=True)


def _solvable(scores: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """The scores with zeros in instances with a NaN or +inf, and which instances these are, (B)."""
    bad = ~(scores < torch.inf).all(1)
    if extra is not None:
        bad = bad | ~(extra < torch.inf).all(1)
        extra = torch.where(bad.unsqueeze(1), 0.0, extra)
    return torch.where(bad.unsqueeze(1), 0.0, scores), extra, bad


def _overwrite(values: Tensor, bad: Tensor, infeasible: Tensor) -> Tensor:
    """Values (B, …) with NaN in bad instances, and zeros in infeasible ones."""
    values = torch.where(infeasible.unsqueeze(1), 0.0, values)
    return torch.where(bad.unsqueeze(1), torch.nan, values)


def _warn_if_missed(outcome: _admm.Outcome, solvable: Tensor, limits: Limits) -> None:
    """Warns once for the batch if a solvable instance did not reach the tolerance."""
    missed = ~outcome.converged & solvable
    if not bool(missed.any()):
        return
    largest = max(float(x[missed].max()) for x in (outcome.primal, outcome.dual))
    warnings.warn(
        f"{int(missed.sum())} of {missed.numel()} graphs did not reach residuals of "
        f"{limits.tol:g} (the largest is {largest:.1e}) in {limits.max_iter} rounds; raise "
        f"`max_iter`, for example to {10 * limits.max_iter}, or `tol`, which `sparsemap` takes. "
        "A graph without any solution never does.",
        ConvergenceWarning,
        stacklevel=5,
    )
