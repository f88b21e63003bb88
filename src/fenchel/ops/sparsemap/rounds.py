"""SparseMAP by the library for an oracle in Python: the library keeps the state of each instance
between the rounds, and a round calls the oracle once, for all that have not ended."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from .._native import NativeFunction
from . import METHODS
from .reference import Columns, check_best, leave_unsolved
from .solution import Limits, Outcome, Support, inner

_BEGIN = NativeFunction(
    "sparsemap_begin",
    "scores: f64*, extra_scores: f64*, count: i64, parts: i64, extras: i64, method: i64, "
    "regularize: i64, max_iter: i64, tol: f64, best_parts: f64*, best_extras: f64*, found: bool*, "
    "start_parts: f64*, start_extras: f64*, start_weights: f64*, start_width: i64, "
    "rounds: void**, threads: i32",
)
_ASK = NativeFunction(
    "sparsemap_ask",
    "rounds: void*, instances: i64*, num: i64, parts: f64*, extras: f64*, threads: i32",
)
_TELL = NativeFunction(
    "sparsemap_tell",
    "rounds: void*, instances: i64*, num: i64, parts: f64*, extras: f64*, going: bool*, "
    "shortfalls: f64*, threads: i32",
)
_FINISH = NativeFunction(
    "sparsemap_finish",
    "rounds: void*, gaps: f64*, iterations: i64*, sizes: i64*, converged: bool*, threads: i32",
)
_COLLECT = NativeFunction(
    "sparsemap_collect",
    "rounds: void*, width: i64, marginals: f64*, parts: f64*, extras: f64*, weights: f64*, "
    "factor: f64*, threads: i32",
)
_FREE = NativeFunction("sparsemap_free", "rounds: void*")

Oracle = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From scores (b, parts), extra scores (b, extras) and the places (b,) of these instances in the
batch to the best structure of each: its parts and extra parts in float64, contiguous."""


def solve(
    oracle: Oracle,
    scores: Tensor,
    extra_scores: Tensor,
    start: tuple[Columns, Tensor] | None,
    method: str,
    limits: Limits,
    regularize: bool,
) -> tuple[Tensor, Tensor, Support, Outcome]:
    """SparseMAP of a batch by any oracle; arguments and results as those of the reference, with the
    parts of structures for their codes, zeros behind them."""
    count, parts = scores.shape
    extras = extra_scores.shape[1]
    scores, extra_scores = scores.contiguous(), extra_scores.contiguous()
    best = oracle(scores, extra_scores, torch.arange(count))
    value = inner(best[0], scores) + inner(best[1], extra_scores)
    has_structure = value.isfinite()
    rounds = ctypes.c_void_p()
    _BEGIN(
        *(scores, extra_scores, count, parts, extras, METHODS.index(method), regularize),
        *(limits.max_iter, limits.tol, *best, has_structure),
        *((None, None, None, 0) if start is None else _start(*start)),
        ctypes.byref(rounds),
    )
    try:
        active = has_structure.nonzero().flatten()
        while num := len(active):
            asked = scores.new_empty(num, parts), scores.new_empty(num, extras)
            _ASK(rounds, active, num, *asked)
            best = oracle(*asked, active)
            going, shortfalls = torch.empty(num, dtype=torch.bool), scores.new_empty(num)
            _TELL(rounds, active, num, *best, going, shortfalls)
            check_best(float(shortfalls.max()))
            active = active[going]
        solution = _collect(rounds, scores, extra_scores)
    finally:
        _FREE(rounds)
    return leave_unsolved(scores, extra_scores, has_structure, *solution)


def _start(columns: Columns, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    parts, extras = columns.parts.contiguous(), columns.extras.contiguous()
    return parts, extras, weights.contiguous(), weights.shape[1]


def _collect(
    rounds: ctypes.c_void_p, scores: Tensor, extra_scores: Tensor
) -> tuple[Tensor, Tensor, Support, Outcome]:
    """The solutions, padded to the widest support."""
    count = len(scores)
    gaps = scores.new_empty(count)
    iterations, sizes = torch.empty((2, count), dtype=torch.int64).unbind()
    converged = torch.empty(count, dtype=torch.bool)
    _FINISH(rounds, gaps, iterations, sizes, converged)
    width = max(sizes.tolist(), default=0)
    marginals, parts = torch.empty_like(scores), scores.new_empty(count, width, scores.shape[1])
    extras = scores.new_empty(count, width, extra_scores.shape[1])
    weights, factor = scores.new_empty(count, width), scores.new_empty(count, width, width)
    _COLLECT(rounds, width, marginals, parts, extras, weights, factor)
    support = Support(parts, parts, extras, factor, sizes, torch.zeros_like(converged))
    return marginals, weights, support, Outcome(gaps, iterations, converged, missed=0)
