"""SparseMAP of factor graphs, and its derivatives."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; each Function here names its own.

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..._transforms import forward_rule
from ...ops.sparsemap.solution import Limits
from .._checks import NO_VMAP, check_start
from .._factor_graph import GraphProblem
from .._posterior import GraphPosterior, GraphSolution, Posterior
from . import _admm
from ._consensus import Consensus
from ._instances import doubles, overwrite, solvable, start_state, warn_if_missed
from ._jacobian import Jacobian


def lp_sparsemap(
    problem: GraphProblem, limits: Limits, start: Posterior | None = None
) -> GraphPosterior:
    """SparseMAP of the relaxation of a graph, for a checked problem."""
    scores, extra = doubles(problem)
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
    warn_if_missed(found.outcome, found.solved, limits)
    marginals = u.reshape(problem.scores.shape)
    extras = None if extra is None else v
    return GraphPosterior(problem, GraphSolution(marginals, extras, found.consensus, found.outcome))


class _Found:
    """A solver, and what it finds; `Argmax` fills it."""

    consensus: Consensus
    outcome: _admm.Outcome
    solved: Tensor

    def __init__(self, problem: GraphProblem, limits: Limits, state: _admm.State | None) -> None:
        self.problem, self.limits, self.state = problem, limits, state

    def solve(self, scores: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """The marginals (B, n) and those of extra scores, (B, m)."""
        scores, extra, bad = solvable(scores.detach(), None if extra is None else extra.detach())
        self.consensus = Consensus(self.problem, scores, extra)
        state = start_state(self.consensus) if self.state is None else self.state
        outcome = _admm.solve(self.consensus, 1.0, self.limits, state)
        self.solved = ~(bad | outcome.infeasible)
        self.outcome = outcome._replace(converged=outcome.converged & ~bad)
        u = self.consensus.mean(outcome.copies, outcome.state.u)
        v = scores.new_zeros(len(scores), 0) if outcome.extras is None else outcome.extras
        return overwrite(u, bad, outcome.infeasible), overwrite(v, bad, outcome.infeasible)

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
    @forward_rule
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
    @forward_rule
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
