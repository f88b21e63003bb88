"""SparseMAP of any structure: the choice of the solver, and the form of its results."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._transforms import is_transformed
from ..mappings._general import ConvergenceWarning
from ..ops import _native
from ..ops import sparsemap as ops
from ..ops._structure import sizes
from ..ops.sparsemap import reference
from ..ops.sparsemap.solution import Limits, Outcome
from ._base import AbstractStructure
from ._checks import check_graph_options, check_not_mapped, check_start, check_structure
from ._closed_form import decompose
from ._coded import CodedStructure
from ._factor_graph import FactorGraph, GraphProblem
from ._posterior import Posterior, Solution
from ._problem import ExtraScores, Problem
from ._sparsemap_autograd import Argmax, EagerArgmax, ExtraMarginals, Found, Solve


def sparsemap(
    structure: AbstractStructure,
    scores: Tensor,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
    method: str | None = None,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    regularize_extra: bool = False,
    start: Posterior | None = None,
) -> Posterior:
    """A sparse distribution over structures: the marginals closest to the scores.

    u = argmax over the marginals of all distributions of ⟨θ, u⟩ + ⟨φ, v⟩ − ½‖u‖², where θ are the
    scores and φ the extra ones, and u and v their marginals.

    Args:
        structure: the set of structures.
        scores: θ, (..., *structure.shape), floating point; −inf forbids a part.
        extra_scores: φ, one tensor or a tuple, as the structure takes them; not regularized.
        lengths, mask: the sizes of the instances of a ragged batch, as for `map_inference`.
        method: "active_set", or "frank_wolfe", "away" or "pairwise" for conditional gradient. By
            default a closed form where the structure has one, else the active set. The active set
            stops for a faster solver where flat scores need many structures.
        tol: the duality gap to reach, on the scale of ½‖u‖². If scores are so large that rounding
            hides this gap, an oracle of your own, or a solver without the C++ library, ends at the
            smallest gap that rounding allows.
        max_iter: how often the oracle may be called for one instance. A warning says if it was not
            enough.
        regularize_extra: whether the objective has −½‖v‖² too.
        start: an earlier result for the same structure and lengths. The solver starts from its
            structures, except those that the scores now forbid, unless they are very many.
    Returns:
        A Posterior: marginals, the codes of structures with their weights, and how exact they are.
        A `FactorGraph` has a GraphPosterior; there `tol` is for residuals, and `max_iter` is the
        number of rounds over the factors. If all structures of an instance are forbidden, its
        marginals and weights are zero. If it has a NaN or +inf, they are NaN.
    Raises:
        TypeError, ValueError: for input of the wrong kind, shape or value.

    The solver calls the oracle about as often as the support has structures, k. Each call adds
    O(k(k + n)) time and memory; backward costs about one more call. Where flat scores need many
    calls, matchings, dependency trees and sequences are solved at once. It runs on the CPU in
    float64, whatever the scores' device and type.

    >>> import torch
    >>> from fenchel import Matching, sparsemap
    >>> posterior = sparsemap(Matching(2, 2), torch.tensor([[0.5, 0.0], [0.0, 0.0]]))
    >>> posterior.marginals
    tensor([[0.6250, 0.3750],
            [0.3750, 0.6250]])
    >>> posterior.codes, posterior.weights
    (tensor([[0, 1],
            [1, 0]]), tensor([0.6250, 0.3750]))

    References: niculae2018sparsemap.
    """
    if torch.compiler.is_compiling():  # it can trace neither the library nor an oracle
        eager: Any = torch.compiler.disable(sparsemap)
        return eager(
            structure,
            scores,
            extra_scores,
            lengths=lengths,
            mask=mask,
            method=method,
            tol=tol,
            max_iter=max_iter,
            regularize_extra=regularize_extra,
            start=start,
        )
    check_structure(structure, AbstractStructure)
    check_not_mapped(scores, extra_scores)
    _checks.check_number("tol", tol, minimum=0)
    _checks.check_size("max_iter", max_iter)
    if method is not None:
        _checks.check_choice("method", method, ops.METHODS)
    if isinstance(structure, FactorGraph):
        check_graph_options(method, regularize_extra)
    problem = structure.problem(scores, extra_scores, lengths, mask)
    if regularize_extra:
        problem = problem.split_shared_scores()
    if isinstance(structure, CodedStructure) and structure.has_projection and not (method or start):
        return _project(problem, structure)
    return solve(problem, method or "active_set", Limits(tol, max_iter), regularize_extra, start)


def solve(
    problem: Problem, method: str, limits: Limits, regularize: bool, start: Posterior | None = None
) -> Posterior:
    """The posterior of a checked problem, by a solver."""
    if isinstance(problem, GraphProblem):
        from .relaxation._lp_sparsemap import lp_sparsemap  # which imports this file

        return lp_sparsemap(problem, limits, start)
    scores = problem.scores.flatten(1).to("cpu", torch.float64)
    extra_scores = problem.extra_scores
    if extra_scores is not None:
        extra_scores = extra_scores.flatten(1).to("cpu", torch.float64)
    if start is not None:
        check_start(start, Posterior, problem)
    solver = _solver(problem, method, limits, regularize, start)
    found = Found()
    argmax = Argmax if is_transformed() else EagerArgmax
    u, weights = argmax.apply(scores, extra_scores, solver, found)  # type: ignore[misc]
    support, outcome = found.support, found.outcome
    _warn_if_missed(outcome, limits)
    extra_parts = None if extra_scores is None else support.extras
    u = u.reshape(problem.scores.shape)
    solution = Solution(u, weights, support.codes, extra_parts, support.sizes, outcome)
    if support.face is not None and extra_scores is not None:
        shape = extra_scores.shape[1:]
        v = replace(solution, weights=weights.detach()).extra_marginals(tuple(shape))
        v = ExtraMarginals.apply(scores, extra_scores, v, found)
        solution = replace(solution, extra=v)
    return Posterior(problem, solution)


def _solver(
    problem: Problem, method: str, limits: Limits, regularize: bool, start: Posterior | None
) -> Solve:
    """The solver for the structure: that of the library, or the reference with its own oracle."""
    structure = problem.structure
    coded = isinstance(structure, CodedStructure) and structure.oracle in ops.ORACLES
    if coded and _native.LIBRARY is not None:
        return _native_solver(problem, method, limits, regularize, start)

    def solve_reference(scores: Tensor, extra_scores: Tensor | None) -> tuple:
        extras = scores.new_zeros(len(scores), 0) if extra_scores is None else extra_scores
        extras = extras.expand(len(scores), -1)
        first = None if start is None else _start_columns(start, problem)
        oracle = _oracle(problem)
        return reference.solve(oracle, scores, extras, first, method, limits, regularize)

    return solve_reference


def _native_solver(
    problem: Problem, method: str, limits: Limits, regularize: bool, start: Posterior | None
) -> Solve:
    structure: Any = problem.structure  # a CodedStructure
    built = (*sizes(problem.scores), structure.option(problem.extra_scores))

    def solve_native(scores: Tensor, extra_scores: Tensor | None) -> tuple:
        return ops.solve(
            structure.oracle,
            built,
            scores.contiguous(),
            None if extra_scores is None else extra_scores.contiguous(),
            None if problem.lengths is None else problem.lengths.cpu(),
            None if start is None else _start_codes(start),
            method,
            limits,
            regularize,
        )

    return solve_native


def _oracle(problem: Problem) -> reference.Oracle:
    """The structure's own oracle, on flat scores of some of the instances."""
    like, extra = problem.scores, problem.extra_scores
    device = like.device

    def oracle(scores: Tensor, extra_scores: Tensor, instances: Tensor) -> reference.Columns:
        part = replace(
            problem,
            scores=scores.reshape(len(instances), *like.shape[1:]).to(device),
            extra_scores=None
            if extra is None
            else extra_scores.reshape(len(instances), *extra.shape[1:]).to(device),
            lengths=None if problem.lengths is None else problem.lengths[instances.to(device)],
        )
        best = problem.structure.best_vertices(part)
        indicator = best.indicator.flatten(1).to("cpu", torch.float64)
        codes = best.indicator if best.codes is None else best.codes
        found = best.value.isfinite().cpu()
        if extra is None:
            extras = indicator.new_zeros(len(indicator), 0)
        else:
            extras = best.extra.flatten(1).to("cpu", torch.float64)
        return reference.Columns(codes.cpu(), indicator, extras, found)

    return oracle


def _start_codes(start: Posterior) -> tuple[Tensor, Tensor]:
    """The structures of an earlier result, as the library takes them."""
    codes = start._solution.codes.to("cpu", torch.int32).contiguous()
    return codes, start._solution.weights.detach().cpu().contiguous()


def _start_columns(start: Posterior, problem: Problem) -> tuple[reference.Columns, Tensor]:
    """The structures of an earlier result, as the reference takes them."""
    structure, codes = problem.structure, start._solution.codes.cpu()
    parts, extras = codes, start._solution.extra_parts
    if isinstance(structure, CodedStructure):
        parts = structure.indicator(codes.long())
        if problem.extra_scores is not None:
            extras = structure.extra_indicator(codes.long(), problem.extra_scores.cpu().double())
    parts = parts.flatten(2).double()
    extras = parts.new_zeros(*parts.shape[:2], 0) if extras is None else extras.flatten(2)
    found = torch.ones(len(parts), dtype=torch.bool)
    return reference.Columns(codes, parts, extras, found), start._solution.weights.detach().cpu()


def _project(problem: Problem, structure: CodedStructure) -> Posterior:
    """The posterior of a structure with a closed form."""
    u = structure.project(problem.scores.double(), problem.lengths)
    sets, weights = decompose(u)
    codes, solvable = structure.codes_of(sets), ~u.isnan().any(-1)
    if codes.shape[1]:  # zero marginals of an instance without structures make no valid set
        possible = solvable & structure.is_valid(codes[:, 0], None)
        weights = torch.where(possible.unsqueeze(-1), weights, 0.0)
    in_support = weights > 0
    codes = torch.where(in_support.unsqueeze(-1), codes, -1)
    gap = torch.where(solvable, 0.0, torch.nan).double()
    outcome = Outcome(gap, torch.zeros_like(solvable, dtype=torch.int64), solvable, missed=0)
    return Posterior(problem, Solution(u, weights, codes, None, in_support.sum(-1), outcome))


def _warn_if_missed(outcome: Outcome, limits: Limits) -> None:
    """Warns once for the batch if an instance did not reach the gap."""
    if not outcome.missed:
        return
    missed = ~outcome.converged & ~outcome.gap.isnan()
    if not bool(missed.any()):
        return
    count, gap = int(missed.sum()), float(outcome.gap[missed].max())
    limited = bool((outcome.iterations[missed] >= limits.max_iter).any())
    remedy = (
        f"within `max_iter` = {limits.max_iter} oracle calls; raise `max_iter`, for example to "
        f"{10 * limits.max_iter}, or `tol`"
        if limited
        else "because of rounding; raise `tol`"
    )
    warnings.warn(
        f"{count} of {missed.numel()} instances did not reach a gap of `tol` = {limits.tol:g} "
        f"(the largest is {gap:.1e}) {remedy}.",
        ConvergenceWarning,
        stacklevel=4,
    )
