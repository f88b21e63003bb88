"""Which instances of a batch can be solved, where to start, and what the others get."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ...mappings._general import ConvergenceWarning
from ...ops.sparsemap.solution import Limits
from .._factor_graph import GraphProblem
from . import _admm
from ._consensus import Consensus

BEST_SIZE = 5.0
"""The size of scores, in units of the step, with which the method is fastest."""


def doubles(problem: GraphProblem) -> tuple[Tensor, Tensor | None]:
    """The scores (B, n) and extra scores (B, m) in float64 on the CPU."""
    extra = problem.extra_scores
    extra = None if extra is None else extra.to("cpu", torch.float64)
    return problem.scores.flatten(1).to("cpu", torch.float64), extra


def start_state(consensus: Consensus) -> _admm.State:
    """Zero multipliers, variables between 0 and 1, and a step for scores of this size."""
    theta = torch.where(consensus.forbidden, 0.0, consensus.scores)
    u = theta.clamp(0, 1)
    step = (size_of(theta, consensus.extra_scores) / BEST_SIZE).clamp(min=1.0)
    return _admm.State(u, u.new_zeros(len(u), len(consensus.index)), step)


def size_of(theta: Tensor, extra: Tensor | None) -> Tensor:
    """The largest absolute score of each instance, (B, 1)."""
    both = theta if extra is None else torch.cat([theta, extra], 1)
    return torch.where(both.isinf(), 0.0, both).abs().amax(1, keepdim=True)


def solvable(scores: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """The scores with zeros in instances with a NaN or +inf, and which instances these are, (B)."""
    bad = ~(scores < torch.inf).all(1)
    if extra is not None:
        bad = bad | ~(extra < torch.inf).all(1)
        extra = torch.where(bad.unsqueeze(1), 0.0, extra)
    return torch.where(bad.unsqueeze(1), 0.0, scores), extra, bad


def overwrite(values: Tensor, bad: Tensor, infeasible: Tensor) -> Tensor:
    """Values (B, …) with NaN in bad instances, and zeros in infeasible ones."""
    values = torch.where(infeasible.unsqueeze(1), 0.0, values)
    return torch.where(bad.unsqueeze(1), torch.nan, values)


def warn_if_missed(outcome: _admm.Outcome, can_be_solved: Tensor, limits: Limits) -> None:
    """Warns once for the batch if an instance that can be solved did not reach the tolerance."""
    missed = ~outcome.converged & can_be_solved
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
