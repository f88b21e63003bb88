"""What SparseMAP returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import _checks
from ..ops.sparsemap.solution import Outcome, extra_marginals
from ._problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._factor_graph import GraphProblem
    from .relaxation._admm import Outcome as GraphOutcome
    from .relaxation._consensus import Consensus

NO_STRUCTURES = (
    "a FactorGraph has marginals, but no distribution over structures of its own; `factors` has "
    "those of each factor."
)
_TENSORS = ("scores", "extra_scores", "lengths")
"""Those of a problem."""


T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801
    """`functools.cached_property` without a lock, which torch.compile cannot trace."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value = self.compute(instance)
        # In inference mode it has no gradient, ever. A graph cannot ask for that mode.
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            object.__setattr__(instance, self.name, value)
        return value


class Distribution(NamedTuple):
    """Structures with their weights."""

    weights: Tensor
    """(B, K) in float64"""
    codes: Tensor
    """(B, K, ...)"""
    extra_parts: Tensor | None
    """(B, K, k): the extra scores that each structure uses, as indices or as indicators"""
    sizes: Tensor
    """(B,)"""


def find_outside(find: Callable[..., Distribution], *arguments: Any) -> Distribution:
    """A distribution for a graph of torch.compile, which cannot hold it: the graph breaks."""
    torch._dynamo.graph_break(
        msg="how many structures SparseMAP has depends on the scores, so that a graph can hold its "
        "marginals, but neither structures nor weights; leave fullgraph=True out."
    )
    outside: Any = torch.compiler.disable(find)
    return outside(*arguments)


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """A solution in float64 with one batch dimension, on the solver's device."""

    marginals: Tensor
    """(B, *shape)"""
    outcome: Outcome
    find_distribution: Callable[[], Distribution]
    """Called once, when structures or weights are first read."""
    extras: Tensor | None = None
    """(B, m): the marginals of extra scores, if they are known without the distribution"""

    @cached
    def distribution(self) -> Distribution:
        """The structures, with weights that have derivatives wherever the marginals have."""
        with torch.enable_grad():
            return self.find_distribution()

    def select(self, places: Tensor) -> Solution:
        """That of the instances at these places, (b,)."""
        marginals, outcome, extras = _select((self.marginals, self.outcome, self.extras), places)
        return Solution(marginals, outcome, partial(_select_distribution, self, places), extras)

    def extra_marginals(self, shape: tuple[int, ...]) -> Tensor:
        """The marginals (B, *shape) of extra scores of that shape."""
        if self.extras is not None:
            return self.extras.reshape(len(self.marginals), *shape)
        weights, _, parts, _ = self.distribution
        if parts is None:
            return weights.new_zeros(len(weights), *shape)
        return extra_marginals(parts, weights, math.prod(shape)).reshape(len(weights), *shape)


def _select(values: Any, places: Tensor) -> Any:
    """The rows at these places, of tensors (B, …) in tuples; what is no tensor stays."""
    if isinstance(values, Tensor):
        return values[places.to(values.device)]
    if not isinstance(values, tuple):
        return values
    found = [_select(value, places) for value in values]
    return type(values)(*found) if hasattr(values, "_fields") else tuple(found)


def _select_distribution(solution: Solution, places: Tensor) -> Distribution:
    """The distributions at these places, padded to the widest of them."""
    weights, codes, extra_parts, sizes = _select(solution.distribution, places)
    widest = int(sizes.max()) if len(sizes) else 0
    extra_parts = None if extra_parts is None else extra_parts[:, :widest]
    return Distribution(weights[:, :widest], codes[:, :widest], extra_parts, sizes)


class Posterior:
    """A sparse distribution over structures, its marginals, and how exact they are.

    All attributes have the batch dimensions, the type and the device of the scores. Those of K
    structures are padded to the widest support of the batch, with weight zero. Where marginals have
    a closed form, structures and weights are computed when they are first read.

    An index takes part of the batch, as that of a tensor with these batch dimensions does:
    `posterior[0]`, `posterior[:, -1]`, `posterior[posterior.converged]`. Gradients stay.

    >>> from fenchel import Matching, sparsemap
    >>> posterior = sparsemap(Matching(2, 2), torch.tensor([[0.6, 0.2], [0.1, 0.4]]))
    >>> posterior.codes, posterior.weights
    (tensor([[0, 1],
            [1, 0]]), tensor([0.6750, 0.3250]))
    >>> posterior.marginals
    tensor([[0.6750, 0.3250],
            [0.3250, 0.6750]])
    >>> posterior.support_size, posterior.converged
    (tensor(2), tensor(True))
    """

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self._problem = problem
        self._solution = solution

    def _restore(self, values: Tensor) -> Tensor:
        with torch.enable_grad():  # what is first read without gradients may need them later
            return self._problem.restore_batch(values.to(self._problem.scores.device))

    def __getitem__(self, index: Any) -> Self:
        problem = self._problem
        batch, device = problem.batch, problem.scores.device
        numbers = torch.arange(batch.numel(), device=device).reshape(batch)[index]
        places = numbers.flatten()
        extra = problem.extra_scores
        part = replace(
            problem,
            scores=problem.scores[places],
            extra_scores=extra if extra is None or len(extra) == 1 else extra[places],
            lengths=_select(problem.lengths, places),
            batch=numbers.shape,
        )
        return type(self)(part, self._solution.select(places))

    def __iter__(self) -> Iterator[Self]:
        batch = self._problem.batch
        if not batch:
            raise TypeError("a posterior without batch dimensions cannot be iterated over.")
        return (self[k] for k in range(batch[0]))

    def to(
        self,
        device: torch.device | str | int | torch.dtype | Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The same posterior with results on another device, or of another type.

        Args:
            device: where to; or a type; or a tensor, whose device and type are meant.
            dtype: a floating-point type. Results are rounded to it from float64.
        """
        if isinstance(device, Tensor):
            device, dtype = device.device, dtype or device.dtype
        elif isinstance(device, torch.dtype):
            device, dtype = None, device
        dtype = dtype or self._problem.dtype
        _checks.check_float_type("dtype", dtype)
        wide = torch.promote_types(dtype, torch.float32)

        def moved(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            return values.to(device, wide if values.is_floating_point() else None)

        problem = self._problem
        fields = {name: moved(getattr(problem, name)) for name in _TENSORS}
        return type(self)(replace(problem, dtype=dtype, **fields), self._solution)

    @cached
    def marginals(self) -> Tensor:
        """(..., *shape): the u of the paper, differentiable."""
        return self._restore(self._solution.marginals)

    @cached
    def extra(self) -> Any:
        """The marginals of the extra scores, differentiable, in the form in which these were given:
        the expected number of uses of each; None without extra scores."""
        problem, solution = self._problem, self._solution
        if problem.extra_scores is None:
            return None
        device = problem.scores.device
        with torch.enable_grad():
            v = solution.extra_marginals(tuple(problem.extra_scores.shape[1:]))
            return problem.restore(solution.marginals.to(device), v.to(device))[1]

    @cached
    def codes(self) -> Tensor:
        """(..., K, positions) in int64: the structures, −1 behind the last one; for a structure of
        your own their indicators (..., K, *shape)."""
        codes = self._solution.distribution.codes
        return self._restore(codes if codes.is_floating_point() else codes.long())

    @cached
    def weights(self) -> Tensor:
        """(..., K), differentiable; they sum to one."""
        return self._restore(self._solution.distribution.weights)

    @cached
    def support_size(self) -> Tensor:
        """(...): how many structures have a nonzero weight."""
        return self._restore(self._solution.distribution.sizes)

    @cached
    def gap(self) -> Tensor:
        """(...) in float64: the duality gap, which bounds ½‖marginals − exact marginals‖²."""
        gap = self._solution.outcome.gap.to(self._problem.scores.device)
        return gap.reshape(self._problem.batch)

    @cached
    def iterations(self) -> Tensor:
        """(...): how often the oracle was called."""
        return self._restore(self._solution.outcome.iterations)

    @cached
    def converged(self) -> Tensor:
        """(...): whether the gap is at most `tol`, but for rounding."""
        return self._restore(self._solution.outcome.converged)

    def __repr__(self) -> str:
        sizes, gap = self._solution.distribution.sizes, self._solution.outcome.gap
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

    def select(self, places: Tensor) -> GraphSolution:
        """That of the instances at these places, (b,)."""
        rows = places.cpu()
        marginals, extras, outcome = _select((self.marginals, self.extras, self.outcome), rows)
        return GraphSolution(marginals, extras, self.consensus.select(rows), outcome)

    def extra_marginals(self, shape: tuple[int, ...]) -> Tensor:
        """The marginals (B, *shape) of extra scores of that shape."""
        assert self.extras is not None
        return self.extras.reshape(-1, *shape)


class GraphPosterior(Posterior):
    """The SparseMAP of a `FactorGraph`: its marginals, and how exact they are.

    Attributes have the batch dimensions of the scores, and marginals their type and device. Only
    the factors have structures with weights.

    >>> from fenchel import FactorGraph, sparsemap
    >>> from fenchel.structures import AtMostOne
    >>> graph = FactorGraph((3,))
    >>> graph.add(AtMostOne(2), torch.tensor([[0, 1], [1, 2]]))
    >>> posterior = sparsemap(graph, torch.tensor([0.9, 0.5, 0.8]))
    >>> posterior.marginals.round(decimals=3)
    tensor([0.7330, 0.2670, 0.7330])
    >>> posterior.converged, posterior.feasible
    (tensor(True), tensor(True))
    """

    _problem: GraphProblem
    _solution: GraphSolution  # type: ignore[assignment]

    def __init__(self, problem: GraphProblem, solution: GraphSolution) -> None:
        self._problem = problem
        self._solution = solution

    def _restore_double(self, values: Tensor) -> Tensor:
        return values.to(self._problem.scores.device).reshape(self._problem.batch)

    @cached
    def marginals(self) -> Tensor:
        """(..., *shape), differentiable: the mean of the factors' own marginals."""
        return self._restore(self._solution.marginals)

    @cached
    def extra(self) -> Any:
        """The marginals of the extra scores, differentiable, in the form in which these were given;
        None without extra scores."""
        extras = self._solution.extras
        if extras is None:
            return None
        device = self._problem.scores.device
        with torch.enable_grad():
            return self._problem.restore(self._solution.marginals.to(device), extras.to(device))[1]

    def _refuse(self) -> Tensor:
        raise AttributeError(NO_STRUCTURES)

    codes = weights = support_size = gap = property(_refuse)  # type: ignore[assignment]

    @cached
    def primal_residual(self) -> Tensor:
        """(...) in float64: the largest difference between a factor's marginals and the graph's."""
        return self._restore_double(self._solution.outcome.primal)

    @cached
    def dual_residual(self) -> Tensor:
        """(...) in float64: the largest error of the optimality conditions, on the scale of the
        scores."""
        return self._restore_double(self._solution.outcome.dual)

    @cached
    def iterations(self) -> Tensor:
        """(...): how many rounds over the factors it took."""
        return self._restore(self._solution.outcome.iterations)

    @cached
    def converged(self) -> Tensor:
        """(...): whether both residuals are at most `tol`."""
        return self._restore(self._solution.outcome.converged)

    @cached
    def feasible(self) -> Tensor:
        """(...): false where it is proved that no marginals satisfy all factors; these are zero."""
        return self._restore(~self._solution.outcome.infeasible)

    @cached
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
