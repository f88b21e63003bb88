"""The SparseMAP quadratic program: its solution by structures of an oracle, and its Jacobian."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._native import InterruptibleFunction, NativeFunction
from .._operator import declare
from .._structure import step
from .derivative import Found, Given, Solver
from .solution import Face, Limits, Outcome, Support, extra_marginals

METHODS = ("active_set", "frank_wolfe", "away", "pairwise")
_NUMBERS = {name: number for number, name in enumerate((*METHODS, "face"))}
ORACLES = ("sequence", "tree", "projective_tree", "matching", "budget", "choice")
"""Those of the library that SparseMAP is compiled with."""
_ARGUMENTS = (
    "scores: f64*, extra_scores: f64*, extra_step: i64, lengths: i64*, lengths_step: i64, "
    "count: i64, n: i64, m: i64, option: i64, start_codes: i32*, start_weights: f64*, "
    "start_width: i64, method: i64, regularize: i64, wants_face: i64, max_iter: i64, tol: f64, "
    "marginals: f64*, "
    "gaps: f64*, iterations: i64*, sizes: i64*, converged: bool*, solutions: void**, shape: i64*, "
    "python: void**, threads: i32"
)
_SOLVE = {name: InterruptibleFunction(f"sparsemap_{name}", _ARGUMENTS) for name in ORACLES}
_TAKE = NativeFunction(
    "sparsemap_take",
    "solutions: void*, width: i64, factor_width: i64, groups_width: i64, links_width: i64, "
    "codes: i32*, parts: i32*, extras: i32*, weights: f64*, factor: f64*, has_face: bool*, "
    "at_once: bool*, groups: i32*, links: i32*",
)


def solve(
    oracle: str,
    sizes: tuple[int, int, int],
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    start: tuple[Tensor, Tensor] | None,
    method: str,
    limits: Limits,
    regularize: bool,
    wants_face: bool = False,
) -> tuple[Tensor, Tensor, Support, Outcome]:
    """SparseMAP of a batch by an oracle of the library.

    Args:
        oracle: its name.
        sizes: n, m and option, which it is built from.
        scores: (B, parts) in float64, contiguous, as are all.
        extra_scores: (B or 1, extras) in float64, or None.
        lengths: (B, k) in int64, or None.
        start: codes (B, K, positions) in int32 and weights (B, K) in float64 to start from.
        method: one of `METHODS`; or "face" for the support alone, which then spans the faces that
            hold the solutions, whatever `limits.tol` is.
        limits: when to stop.
        regularize: whether the marginals of extra parts count in the norm.
        wants_face: whether `has_face` of the support is wanted, which costs two calls.
    Returns:
        The marginals (B, parts), the weights (B, K), the structures, and how it ended.
    """
    count = scores.shape[0]
    marginals = torch.empty_like(scores)
    gaps = scores.new_empty(count)
    iterations, supports = torch.empty((2, count), dtype=torch.int64).unbind()
    converged = torch.empty(count, dtype=torch.bool)
    solutions, shape = ctypes.c_void_p(), (ctypes.c_int64 * 8)()
    _SOLVE[oracle](
        *(scores, extra_scores, step(extra_scores, count)),
        *(lengths, 0 if lengths is None else lengths.shape[1], count, *sizes),
        *((None, None, 0) if start is None else (*start, start[0].shape[1])),
        *(_NUMBERS[method], regularize, wants_face, limits.max_iter, limits.tol),
        *(marginals, gaps, iterations, supports, converged, ctypes.byref(solutions), shape),
    )
    width, positions, others, missed, factor_width, num_at_once, *face_widths = shape
    codes = torch.empty((count, width, positions), dtype=torch.int32)
    parts, extras = torch.empty_like(codes), codes.new_empty((count, width, others))
    weights, factor = scores.new_empty(count, width), scores.new_empty(count, *2 * (factor_width,))
    has_face, face = torch.empty_like(converged), None
    if num_at_once:
        groups, links = (codes.new_empty((count, n // 3, 3)) for n in face_widths)
        face = Face(torch.empty_like(converged), groups, links)
    _TAKE(
        *(solutions, width, factor_width, *face_widths, codes, parts, extras, weights, factor),
        *(has_face, *(face or (None, None, None))),
    )
    support = Support(codes, parts, extras, factor, supports, has_face, face)
    return marginals, weights, support, Outcome(gaps, iterations, converged, missed)


def solver(
    oracle: str,
    sizes: tuple[int, int, int],
    start: Callable[[], tuple[Tensor, Tensor]] | None,
    method: str,
    limits: Limits,
    regularize: bool,
    wants_face: bool,
) -> Solver:
    """`solve` for scores that are given later; arguments as there, but `start` is called then."""

    def solve_all(scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None) -> tuple:
        extra = None if extra_scores is None else extra_scores.contiguous()
        first = None if start is None else start()
        rest = (lengths, first, method, limits, regularize, wants_face)
        return solve(oracle, sizes, scores.contiguous(), extra, *rest)

    def span(given: Given, rows: Tensor, weights: Tensor, support: Support, _: Outcome) -> Support:
        found = support.codes[rows], weights[rows]
        return solve(oracle, sizes, *given.select(rows), found, "face", limits, regularize)[2]

    return Solver(solve_all, span)


def _fake_marginals(scores: Tensor, extra_scores: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    count = scores.shape[0]
    extras = 0 if extra_scores is None else extra_scores.shape[1]
    return (
        torch.empty_like(scores),
        scores.new_empty(count, extras),
        scores.new_empty(count),
        scores.new_empty(count, dtype=torch.int64),
        scores.new_empty(count, dtype=torch.bool),
    )


def _fake_product(*arguments: Any) -> tuple[Tensor, ...]:
    return _fake_marginals(*arguments)[:2]


def _found(
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    oracle: str,
    sizes: list[int],
    method: str,
    tol: float,
    max_iter: int,
    regularize: bool,
    *,
    wants_face: bool = False,
) -> tuple[Tensor, Tensor, Found]:
    """Marginals, weights, and the rest."""
    n, m, option = sizes
    rest = (None, method, Limits(tol, max_iter), regularize, wants_face)
    found = Found(solver(oracle, (n, m, option), *rest))
    return *found.solve(Given(scores, extra_scores, lengths)), found


def _marginals(scores: Tensor, extra_scores: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    u, weights, found = _found(scores, extra_scores, *rest)
    v = u.new_empty(len(u), 0)
    if extra_scores is not None:
        v = extra_marginals(found.support.extras, weights, extra_scores.shape[1]).contiguous()
    return u, v, *found.outcome[:3]


def _product(
    scores: Tensor,
    extra_scores: Tensor | None,
    of_u: Tensor,
    of_v: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    found = _found(scores, extra_scores, *rest, wants_face=True)[2]
    widths = scores.shape[1], 0 if extra_scores is None else extra_scores.shape[1]
    return found.product(of_u, of_v, None, widths, False)[:2]


_OPTIONS = (
    "Tensor? lengths, str oracle, int[] sizes, str method, float tol, int max_iter, bool regularize"
)
marginals = declare(
    f"sparsemap(Tensor scores, Tensor? extra_scores, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_fake_marginals,
    reference=_marginals,
    native=_marginals,
    triton=None,
    rowwise=False,
)
"""Marginals u and v, gaps, oracle calls, and which instances have converged, for graphs that cannot
hold a support, whose size depends on the scores. Tensors as for `solve`, on the CPU."""
product = declare(
    f"sparsemap_product(Tensor scores, Tensor? extra_scores, Tensor of_u, Tensor? of_v, {_OPTIONS})"
    " -> (Tensor, Tensor)",
    fake=_fake_product,
    reference=_product,
    native=_product,
    triton=None,
    rowwise=False,
)
"""The Jacobian of u and v times (of_u, of_v). It solves again."""
