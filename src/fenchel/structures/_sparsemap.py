"""SparseMAP of any structure: the choice of the solver, and the form of its results."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from .._transforms import break_graph_if_differentiated, is_transformed
from ..mappings._general import ConvergenceWarning
from ..ops import _native
from ..ops import sparsemap as ops
from ..ops._structure import sizes
from ..ops.sparsemap.derivative import Found, Solver
from ..ops.sparsemap.solution import Limits, Outcome, Support, extra_marginals
from ._base import AbstractStructure
from ._checks import check_graph_options, check_not_mapped, check_start, check_structure
from ._closed_form import project
from ._coded import CodedStructure
from ._factor_graph import FactorGraph, GraphProblem
from ._posterior import Distribution, Posterior, Solution, find_outside
from ._problem import ExtraScores, Problem
from ._sparsemap_autograd import Argmax, CompiledArgmax, EagerArgmax, ExtraMarginals


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
        marginals are zero, and it has no structures. If it has a NaN or +inf, its marginals are
        NaN, and it has none either.
    Raises:
        TypeError, ValueError: for input of the wrong kind, shape or value.

    The solver calls the oracle about as often as the support has structures, k. Each call adds
    O(k(k + n)) time and memory; backward costs about one more call. Where flat scores need many
    calls, matchings, dependency trees and sequences are solved at once. It runs on the CPU
    in float64, whatever the scores' device and type. A closed form (`Bits`, `Budget`, `Choice`, and
    `Sequence` without extra scores) runs where the scores are, and finds structures and weights
    only when they are read, in O(n²).

    Gradients of the marginals are those of the exact solution, whatever `tol` is; gradients of the
    weights those of the structures found.

    torch.compile takes marginals, but neither structures nor weights, at which it breaks the graph;
    nor a `Custom`, a `FactorGraph` or `start`. In a graph there is no warning.

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
    if torch.compiler.is_compiling() and refuse_graph(structure, method, start):
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
        problem = _with_extra(problem).split_shared_scores()
    return solve(problem, method, Limits(tol, max_iter), regularize_extra, start)


def _with_extra(problem: Problem) -> Problem:
    """The problem with zeros for extra scores that were not given, which may count in the norm."""
    shape = getattr(problem.structure, "extra_shape", None)
    if problem.extra_scores is not None or shape is None:
        return problem
    return replace(problem, extra_scores=problem.scores.new_zeros(1, *shape))


def refuse_graph(structure: Any, method: str | None = None, start: Any = None) -> bool:
    """Whether torch.compile cannot take SparseMAP of the structure; it breaks the graph then."""
    if not isinstance(structure, CodedStructure):
        reason = "of this structure calls Python code, which torch.compile cannot trace"
    elif start is not None:
        reason = "with `start` is not compiled"
    elif (method or not structure.has_projection) and _native.LIBRARY is None:
        reason = "needs the C++ library to be compiled"
    else:
        return False
    torch._dynamo.graph_break(msg=f"SparseMAP {reason}; leave fullgraph=True out.")
    return True


def solve(
    problem: Problem,
    method: str | None,
    limits: Limits,
    regularize: bool = False,
    start: Posterior | None = None,
) -> Posterior:
    """The posterior of a checked problem: in closed form if there is one, else by a solver."""
    has_norm_of_extra = regularize and problem.extra_scores is not None
    chosen = method is not None or start is not None or has_norm_of_extra
    projected = None if chosen else project(problem)
    if projected is not None:
        return Posterior(problem, projected)
    if isinstance(problem, GraphProblem):
        from .relaxation._lp_sparsemap import lp_sparsemap  # which imports this file

        return lp_sparsemap(problem, limits, start)
    scores = problem.scores.flatten(1).to("cpu", torch.float64)
    extra_scores = problem.extra_scores
    if extra_scores is not None:
        extra_scores = extra_scores.flatten(1).to("cpu", torch.float64)
    if torch.compiler.is_compiling():
        return _compiled(problem, scores, extra_scores, method or "active_set", limits, regularize)
    if start is not None:
        check_start(start, Posterior, problem)
    lengths = None if problem.lengths is None else problem.lengths.cpu()
    inputs = (x for x in (scores, extra_scores) if x is not None)
    wants_face = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    wants_face = wants_face or is_transformed()
    found = Found(_solver(problem, method or "active_set", limits, regularize, start, wants_face))
    argmax = Argmax if is_transformed() else EagerArgmax
    u, weights = argmax.apply(scores, extra_scores, lengths, found)  # type: ignore[misc]
    support, outcome = found.support, found.outcome
    _warn_if_missed(outcome, limits)
    extra_parts = None if extra_scores is None else support.extras
    find = partial(_distribution, problem, weights, support, extra_parts)
    extras = None
    if extra_scores is not None and not (support.face is None and found.is_exact):
        extras = extra_marginals(support.extras, weights.detach(), extra_scores.shape[1])
        extras = ExtraMarginals.apply(scores, extra_scores, extras, found)
    return Posterior(problem, Solution(u.reshape(problem.scores.shape), outcome, find, extras))  # type: ignore[arg-type]


def _compiled(
    problem: Problem,
    scores: Tensor,
    extra_scores: Tensor | None,
    method: str,
    limits: Limits,
    regularize: bool,
) -> Posterior:
    """The posterior in a graph, by an operator for all that has a fixed shape."""
    break_graph_if_differentiated()
    structure: Any = problem.structure  # a CodedStructure
    built = (*sizes(problem.scores), structure.option(problem.extra_scores))
    lengths = None if problem.lengths is None else problem.lengths.cpu()
    options = (structure.oracle, built, method, limits.tol, limits.max_iter, regularize)
    u, v, gap, iterations, converged = CompiledArgmax.apply(scores, extra_scores, lengths, options)  # type: ignore[misc]
    outcome = Outcome(gap, iterations, converged, missed=0)
    find = partial(_find_again, problem, method, limits, regularize)
    extras = None if extra_scores is None else v
    return Posterior(problem, Solution(u.reshape(problem.scores.shape), outcome, find, extras))


def _find_again(problem: Problem, method: str, limits: Limits, regularize: bool) -> Distribution:
    """The distribution of a solution that was found in a graph."""
    if torch.compiler.is_compiling():
        return find_outside(_find_again, problem, method, limits, regularize)
    return solve(problem, method, limits, regularize)._solution.distribution


def _distribution(
    problem: Problem, weights: Tensor, support: Support, extra_parts: Tensor | None
) -> Distribution:
    """Where structures have no codes, their parts take their place, −1 behind the support."""
    codes, sizes = support.codes, support.sizes
    if not isinstance(problem.structure, CodedStructure):
        behind = torch.arange(codes.shape[1]) >= sizes.unsqueeze(-1)
        codes = support.parts.masked_fill(behind.unsqueeze(-1), -1)
        codes = codes.reshape(*codes.shape[:2], *problem.scores.shape[1:])
    return Distribution(weights, codes, extra_parts, sizes)


def _solver(
    problem: Problem,
    method: str,
    limits: Limits,
    regularize: bool,
    start: Posterior | None,
    wants_face: bool,
) -> Solver:
    """The solver for the structure: by an oracle of the library, or by its own."""
    structure: Any = problem.structure
    coded = isinstance(structure, CodedStructure) and structure.oracle in ops.ORACLES
    if _native.LIBRARY is None or not coded:
        from ._own_oracle import solver_in_rounds, start_columns  # few programs need it

        first = None if start is None else partial(start_columns, start, problem)
        return solver_in_rounds(problem, first, method, limits, regularize)
    built = (*sizes(problem.scores), structure.option(problem.extra_scores))
    first = None if start is None else partial(_start_codes, start)
    return ops.solver(structure.oracle, built, first, method, limits, regularize, wants_face)


def _start_codes(start: Posterior) -> tuple[Tensor, Tensor]:
    """The structures of an earlier result, as the library takes them."""
    weights, codes, _, _ = start._solution.distribution
    return codes.to("cpu", torch.int32).contiguous(), weights.detach().cpu().contiguous()


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
