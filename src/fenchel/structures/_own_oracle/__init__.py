"""SparseMAP by the structure's own `argmax`, which is called once in each round, for all instances
that have not ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...ops import _native
from ...ops.sparsemap import reference
from ...ops.sparsemap.derivative import Given, Solver
from ...ops.sparsemap.solution import EXACT_GAP, Limits, Outcome, Support
from .._coded import CodedStructure
from .._posterior import Posterior
from .._problem import Problem

if TYPE_CHECKING:
    from ...ops.sparsemap import rounds


def solver_in_rounds(
    problem: Problem,
    start: Callable[[], tuple[reference.Columns, Tensor]] | None,
    method: str,
    limits: Limits,
    regularize: bool,
) -> Solver:
    """The solver, in C++ but for the oracle if there is a library and the structure has no codes.

    Args:
        problem: its structure and lengths; scores are given later.
        start: gives structures (B, K, …) and their weights (B, K) to start from.
        method, limits, regularize: as for `ops.sparsemap.solve`.
    """

    def solve_all(scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None) -> tuple:
        given = Given(scores, _expand_extra(scores, extra_scores), lengths)
        first = None if start is None else start()
        return _solve(_with_lengths(problem, lengths), given, first, method, limits, regularize)

    def span(
        given: Given, rows: Tensor, weights: Tensor, support: Support, outcome: Outcome
    ) -> Support:
        from ...ops.sparsemap.face_span import span  # few programs need it

        extras = _expand_extra(given.scores, given.extra_scores)
        given = given._replace(extra_scores=extras).select(rows)
        part = _with_lengths(problem, given.lengths)
        found = torch.ones(len(rows), dtype=torch.bool)
        kept = support.codes[rows], support.parts[rows], support.extras[rows]
        nearly = Support(*kept, support.factor[rows], support.sizes[rows], support.has_face[rows])
        gap = outcome.gap[rows]
        if (gap > EXACT_GAP).any():
            first = reference.Columns(*kept, found), weights[rows]
            exact = Limits(0.0, limits.max_iter)
            _, _, nearly, better = _solve(part, given, first, "active_set", exact, regularize)
            gap = better.gap
        given_scores = given.scores, extras[rows]
        return span(_oracle(part), *given_scores, nearly, gap, regularize, limits.max_iter)

    return Solver(solve_all, span)


def _with_lengths(problem: Problem, lengths: Tensor | None) -> Problem:
    """The problem for other lengths, on the CPU."""
    return replace(problem, lengths=None if lengths is None else lengths.to(problem.scores.device))


def _solve(
    problem: Problem,
    given: Given,
    start: tuple[reference.Columns, Tensor] | None,
    method: str,
    limits: Limits,
    regularize: bool,
) -> tuple[Tensor, Tensor, Support, Outcome]:
    assert given.extra_scores is not None
    rest = (given.scores, given.extra_scores, start, method, limits, regularize)
    if _native.LIBRARY is None or isinstance(problem.structure, CodedStructure):
        return reference.solve(_oracle(problem), *rest)
    from ...ops.sparsemap import rounds  # few programs need it

    return rounds.solve(_own_oracle(problem), *rest)


def _expand_extra(scores: Tensor, extra_scores: Tensor | None) -> Tensor:
    """Extra scores (B, m) for scores (B, n); m is 0 for none."""
    extras = scores.new_zeros(len(scores), 0) if extra_scores is None else extra_scores
    return extras.expand(len(scores), -1)


def start_columns(start: Posterior, problem: Problem) -> tuple[reference.Columns, Tensor]:
    """The structures of an earlier result, as the reference takes them."""
    weights, codes, extras, _ = start._solution.distribution
    structure, extra_scores = problem.structure, problem.extra_scores
    parts = codes = codes.cpu()
    if isinstance(structure, CodedStructure):
        parts = structure.indicator(codes.long())
        if extra_scores is not None:
            extras = structure.extra_indicator(codes.long(), extra_scores.cpu().double())
    parts = parts.flatten(2).double()
    if extra_scores is None:
        extras = parts.new_zeros(*parts.shape[:2], 0)
    elif extras is None or extras.shape[2:].numel() != extra_scores.shape[1:].numel():
        raise ValueError("`start` must be a result with extra scores of the same shape.")
    found = torch.ones(len(parts), dtype=torch.bool)
    return reference.Columns(codes, parts, extras.flatten(2), found), weights.detach().cpu()


def _part(problem: Problem, scores: Tensor, extra_scores: Tensor, instances: Tensor) -> Problem:
    """The problem of some of the instances, for other scores, flat and on the CPU."""
    like, extra, lengths = problem.scores, problem.extra_scores, problem.lengths
    count, device = len(instances), like.device
    return replace(
        problem,
        scores=scores.reshape(count, *like.shape[1:]).to(device),
        extra_scores=None
        if extra is None
        else extra_scores.reshape(count, *extra.shape[1:]).to(device),
        lengths=None if lengths is None else lengths[instances.to(device)],
    )


def _flat(values: Tensor) -> Tensor:
    """Values (b, …) as solvers take them, (b, n) in float64."""
    return values.flatten(1).to("cpu", torch.float64).contiguous()


def _own_oracle(problem: Problem) -> rounds.Oracle:
    """The structure's `argmax`, on flat scores of some of the instances."""

    def oracle(scores: Tensor, extra_scores: Tensor, instances: Tensor) -> tuple[Tensor, Tensor]:
        part = _part(problem, scores, extra_scores, instances)
        indicator, extra = problem.structure.best_indicators(part)
        return _flat(indicator), scores.new_zeros(len(scores), 0) if extra is None else _flat(extra)

    return oracle


def _oracle(problem: Problem) -> reference.Oracle:
    """The same, with the codes of structures if these have any."""

    def oracle(scores: Tensor, extra_scores: Tensor, instances: Tensor) -> reference.Columns:
        best = problem.structure.best_vertices(_part(problem, scores, extra_scores, instances))
        indicator = _flat(best.indicator)
        codes = best.indicator if best.codes is None else best.codes
        extra = scores.new_zeros(len(scores), 0) if best.extra is None else _flat(best.extra)
        return reference.Columns(codes.cpu(), indicator, extra, best.value.isfinite().cpu())

    return oracle
