"""Consensus ADMM over the factors of a graph, and the Jacobian of its solution, in C++."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._native import NativeFunction

KINDS = (
    "sequence",
    "tree",
    "projective_tree",
    "matching",
    "bits",
    "budget",
    "xor",
    "at_most_one",
    "or",
    "imply",
    "xor_out",
    "or_out",
    "and_out",
    "knapsack",
    "pair",
)
"""The factors of the library, in the order of `Kind` in factor.hpp."""
_ROUNDS = NativeFunction(
    "factor_graph_rounds",
    "scores: f64*, extra_scores: f64*, count: i64, groups: i64*, num_groups: i64, numbers: f64*, "
    "index: i64*, negated: bool*, variables: i64, num_copies: i64, num_extras: i64, "
    "curvature: f64, tol: f64, relaxation: f64, balance: f64, rounding: f64, period: i64, "
    "first: i64, last: i64, u: f64*, multipliers: f64*, step: f64*, copies: f64*, extras: f64*, "
    "shifted: f64*, primal: f64*, dual: f64*, rounds: i64*, converged: bool*, threads: i32",
)
_PRODUCT = NativeFunction(
    "factor_graph_product",
    "scores: f64*, shifted: f64*, extra_scores: f64*, count: i64, groups: i64*, num_groups: i64, "
    "numbers: f64*, index: i64*, negated: bool*, variables: i64, num_copies: i64, "
    "num_extras: i64, directions: f64*, radii: f64*, num_radii: i64, straight: f64, in_u: f64*, "
    "in_v: f64*, out_u: f64*, out_v: f64*, is_known: bool*, threads: i32",
)


class Graph(NamedTuple):
    """The factors of a graph."""

    groups: Tensor
    """(G, 7) in int64, for each group of factors of one kind: the kind's place in `KINDS`, how many
    factors there are, the variables and extra scores of each (0 if not given), and the n, m and
    option that an oracle is built from"""
    numbers: Tensor
    """Of each group of knapsacks the costs and the budget, in float64"""
    index: Tensor  # type: ignore[assignment]
    """(E,) in int64: the variables of all factors"""
    negated: Tensor
    """(E,), which of them count as their negation"""


class Settings(NamedTuple):
    """How the rounds go; `structures/relaxation/_admm.py` explains them."""

    curvature: float
    tol: float
    relaxation: float
    balance: float
    rounding: float
    period: int
    first: int
    last: int


class Probe(NamedTuple):
    """Where a factor's projection has to be linear; `structures/relaxation/_jacobian.py` explains
    it."""

    directions: Tensor
    """(E,) in float64"""
    radii: Tensor
    """(R,) in float64"""
    straight: float


def run_rounds(
    graph: Graph,
    settings: Settings,
    scores: Tensor,
    extra_scores: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    residuals: tuple[Tensor, Tensor],
) -> tuple[Tensor, ...]:
    """Rounds `first` to `last` of B instances, each until it has converged.

    Args:
        graph: the factors.
        settings: how the rounds go.
        scores: (B, n) in float64, as are all.
        extra_scores: (B, m).
        state: the variables (B, n), multipliers (B, E) and steps (B, 1), which are not changed.
        residuals: those after the round before the first, (B); they matter if there was one.
    Returns:
        The same state after the rounds; of the last round the copies (B, E), the extra marginals
        (B, m), the scores of its subproblems (B, E) and both residuals (B); then how many rounds
        there were, (B), and which instances have converged, (B).
    """
    count = len(scores)
    u, multipliers, step, primal, dual = (x.clone().contiguous() for x in (*state, *residuals))
    copies, shifted = torch.empty_like(multipliers), torch.empty_like(multipliers)
    extras = torch.empty_like(extra_scores)
    rounds = torch.empty(count, dtype=torch.int64)
    converged = torch.empty(count, dtype=torch.bool)
    sizes = scores.shape[1], len(graph.index), extra_scores.shape[1]
    _ROUNDS(
        *(scores.contiguous(), extra_scores.contiguous(), count, graph.groups, len(graph.groups)),
        *(graph.numbers, graph.index, graph.negated, *sizes, *settings, u, multipliers, step),
        *(copies, extras, shifted, primal, dual, rounds, converged),
    )
    return u, multipliers, step, copies, extras, shifted, primal, dual, rounds, converged


def product(
    graph: Graph,
    probe: Probe,
    scores: Tensor,
    shifted: Tensor,
    extra_scores: Tensor,
    u: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor] | None:
    """The Jacobian of marginals and extra marginals in their scores, times vectors.

    Args:
        graph: the factors.
        probe: where the projections have to be linear.
        scores: (B, n) in float64, as are all.
        shifted, extra_scores: (B, E) and (B, m), those of the factors' last subproblems.
        u, v: the vectors, (B, n) and (B, m).
    Returns:
        The product, (B, n) and (B, m); None if a factor of an instance was solved at once, by a
        method that leaves no such Jacobian.
    """
    out_u, out_v = u.new_empty(u.shape), v.new_empty(v.shape)
    is_known = torch.empty(len(u), dtype=torch.bool)
    sizes = u.shape[1], shifted.shape[1], v.shape[1]
    _PRODUCT(
        *(scores.contiguous(), shifted.contiguous(), extra_scores.contiguous(), len(u)),
        *(graph.groups, len(graph.groups), graph.numbers, graph.index, graph.negated, *sizes),
        *(probe.directions, probe.radii, len(probe.radii), probe.straight),
        *(u.contiguous(), v.contiguous(), out_u, out_v, is_known),
    )
    return (out_u, out_v) if is_known.all() else None
