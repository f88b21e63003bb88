"""What SparseMAP returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ops.sparsemap.solution import Outcome
from ._problem import Problem

if TYPE_CHECKING:
    from ._factor_graph import GraphProblem
    from .relaxation._admm import Consensus
    from .relaxation._admm import Outcome as GraphOutcome

NO_STRUCTURES = (
    "a FactorGraph has marginals, but no distribution over structures of its own; `factors` has "
    "those of each factor."
)


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """A solution in float64 with one batch dimension, on the solver's device."""

    marginals: Tensor
    """(B, *shape)"""
    weights: Tensor
    """(B, K)"""
    codes: Tensor
    """(B, K, ...)"""
    extra_parts: Tensor | None
    """(B, K, k): the extra scores that each structure uses, as indices or as indicators"""
    sizes: Tensor
    """(B,)"""
    outcome: Outcome
    extra: Tensor | None = None
    """(B, m): the marginals of extra scores, where weights do not have all of their gradient"""

    def extra_marginals(self, shape: tuple[int, ...]) -> Tensor:
        """The marginals (B, *shape) of extra scores of that shape."""
        if self.extra is not None:
            return self.extra.reshape(-1, *shape)
        parts, weights = self.extra_parts, self.weights
        if parts is None:
            return weights.new_zeros(len(weights), *shape)
        if parts.is_floating_point():
            v = torch.einsum("bk,bkn->bn", weights, parts)
        else:
            size = torch.Size(shape).numel()
            indices = torch.where(parts < 0, size, parts).long()
            repeated = weights.unsqueeze(-1).expand_as(indices)
            v = weights.new_zeros(len(weights), size + 1)
            v = v.scatter_add(1, indices.flatten(1), repeated.flatten(1))[:, :size]
        return v.reshape(len(weights), *shape)


class Posterior:
    """A sparse distribution over structures, its marginals, and how exact they are.

    All attributes have the batch dimensions, the type and the device of the scores. Those of K
    structures are padded to the widest support of the batch, with weight zero.
    """

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self._problem = problem
        self._solution = solution

    def _restore(self, values: Tensor) -> Tensor:
        return self._problem.restore_batch(values.to(self._problem.scores.device))

    @cached_property
    def marginals(self) -> Tensor:
        """(..., *shape): the u of the paper, differentiable."""
        return self._restore(self._solution.marginals)

    @cached_property
    def extra(self) -> Any:
        """The marginals of the extra scores, differentiable, in the form in which these were given:
        the expected number of uses of each; None without extra scores."""
        problem, solution = self._problem, self._solution
        if problem.extra_scores is None:
            return None
        v = solution.extra_marginals(tuple(problem.extra_scores.shape[1:]))
        device = problem.scores.device
        return problem.restore(solution.marginals.to(device), v.to(device))[1]

    @cached_property
    def codes(self) -> Tensor:
        """(..., K, positions) in int64: the structures, −1 behind the last one; for a structure of
        your own their indicators (..., K, *shape)."""
        codes = self._solution.codes
        return self._restore(codes if codes.is_floating_point() else codes.long())

    @cached_property
    def weights(self) -> Tensor:
        """(..., K), differentiable; they sum to one."""
        return self._restore(self._solution.weights)

    @cached_property
    def support_size(self) -> Tensor:
        """(...): how many structures have a nonzero weight."""
        return self._restore(self._solution.sizes)

    @cached_property
    def gap(self) -> Tensor:
        """(...) in float64: the duality gap, which bounds ½‖marginals − exact marginals‖²."""
        gap = self._solution.outcome.gap.to(self._problem.scores.device)
        return gap.reshape(self._problem.batch)

    @cached_property
    def iterations(self) -> Tensor:
        """(...): how often the oracle was called."""
        return self._restore(self._solution.outcome.iterations)

    @cached_property
    def converged(self) -> Tensor:
        """(...): whether the gap is at most `tol`."""
        return self._restore(self._solution.outcome.converged)

    def __repr__(self) -> str:
        sizes, gap = self._solution.sizes, self._solution.outcome.gap
        widest, largest = (int(sizes.max()), float(gap.max())) if len(sizes) else (0, 0.0)
        return (
            f"Posterior of {len(sizes)} instances of {self._problem.structure}, with up to "
            f"{widest} structures and gaps up to {largest:.1e}"
        )


@dataclass(frozen=True, eq=False)
class GraphSolution:
    """A solution in float64 with one batch dimension, on the CPU."""

    marginals: Tensor
    """(B, *shape)"""
    extras: Tensor | None
    """(B, m)"""
    consensus: Consensus
    outcome: GraphOutcome

    def extra_marginals(self, shape: tuple[int, ...]) -> Tensor:
        """The marginals (B, *shape) of extra scores of that shape."""
        assert self.extras is not None
        return self.extras.reshape(-1, *shape)


class GraphPosterior(Posterior):
    """The SparseMAP of a `FactorGraph`: its marginals, and how exact they are.

    Attributes have the batch dimensions of the scores, and marginals their type and device. Only
    the factors have structures with weights.
    """

    _problem: GraphProblem
    _solution: GraphSolution  # type: ignore[assignment]

    def __init__(self, problem: GraphProblem, solution: GraphSolution) -> None:
        self._problem = problem
        self._solution = solution

    def _restore_double(self, values: Tensor) -> Tensor:
        return values.to(self._problem.scores.device).reshape(self._problem.batch)

    @cached_property
    def marginals(self) -> Tensor:
        """(..., *shape), differentiable: the mean of the factors' own marginals."""
        return self._restore(self._solution.marginals)

    @cached_property
    def extra(self) -> Any:
        """The marginals of the extra scores, differentiable, in the form in which these were given;
        None without extra scores."""
        extras = self._solution.extras
        if extras is None:
            return None
        device = self._problem.scores.device
        return self._problem.restore(self._solution.marginals.to(device), extras.to(device))[1]

    def _refuse(self) -> Tensor:
        raise AttributeError(NO_STRUCTURES)

    codes = weights = support_size = gap = property(_refuse)  # type: ignore[assignment]

    @cached_property
    def primal_residual(self) -> Tensor:
        """(...) in float64: the largest difference between a factor's marginals and the graph's."""
        return self._restore_double(self._solution.outcome.primal)

    @cached_property
    def dual_residual(self) -> Tensor:
        """(...) in float64: the largest error of the optimality conditions, on the scale of the
        scores."""
        return self._restore_double(self._solution.outcome.dual)

    @cached_property
    def iterations(self) -> Tensor:
        """(...): how many rounds over the factors it took."""
        return self._restore(self._solution.outcome.iterations)

    @cached_property
    def converged(self) -> Tensor:
        """(...): whether both residuals are at most `tol`."""
        return self._restore(self._solution.outcome.converged)

    @cached_property
    def feasible(self) -> Tensor:
        """(...): false where it is proved that no marginals satisfy all factors; these are zero."""
        return self._restore(~self._solution.outcome.infeasible)

    @cached_property
    def factors(self) -> list[Posterior]:
        """For each `add`, the structures of its factors with their weights, as a Posterior with
        batch dimensions (..., F); without gradients. A negated variable counts as 1 − u."""
        from ._sparsemap import sparsemap  # which imports this file

        consensus, outcome = self._solution.consensus, self._solution.outcome
        extra = consensus.extra_scores
        pieces = consensus.extra_pieces(None if extra is None else extra / outcome.state.step)
        found, start = [], 0
        for group, piece in zip(consensus.groups, pieces, strict=True):
            size = group.index.numel()
            scores = consensus.group_scores(group, outcome.shifted[:, start : start + size])
            scores = scores.reshape(*self._problem.batch, *group.index.shape)
            if piece is not None:
                piece = piece.reshape(*self._problem.batch, *piece.shape[1:])
            with torch.no_grad():
                posterior = sparsemap(group.factor, scores, piece)
            problem = replace(posterior._problem, dtype=self._problem.dtype)
            found.append(Posterior(problem, posterior._solution))
            start += size
        return found

    def __repr__(self) -> str:
        count, converged = len(self._solution.marginals), self._solution.outcome.converged
        return (
            f"GraphPosterior of {count} instances of {self._problem.structure}, "
            f"{int(converged.sum())} of them converged"
        )
