"""SparseMAP in plain PyTorch, for any oracle: the active set method, and conditional gradient.

All instances of a batch take their steps together: each round calls the oracle once, for those that
have not converged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .combination import Combination
from .solution import Limits, Outcome, Support

MAX_STALLED = 100
"""How many rounds in a row may have no growth of the objective, which rounding can hide."""


class Columns(NamedTuple):
    """Structures as an oracle returns them: names of any kind, and their (extra_scores) parts."""

    codes: Tensor
    """(b, ...)"""
    parts: Tensor
    """(b, parts) in float64"""
    extras: Tensor
    """(b, extras) in float64"""
    found: Tensor
    """(b,), false where every structure has a part of score −inf, or a score is NaN"""


Oracle = Callable[[Tensor, Tensor, Tensor], Columns]
"""From scores (b, parts), extra scores (b, extras) and the places (b,) of these instances in
the batch to the best structure of each."""


def check_best(shortfall: float) -> None:
    """Raises if a structure's score is that much too low to be the best one's."""
    if shortfall > 0:
        raise ValueError(
            "the oracle must return the best structure; it returned one whose score is lower, "
            f"by {shortfall:.1e}, than that of others it has returned before."
        )


class _Instance:
    """The solver of one instance, between calls of the oracle."""

    def __init__(self, combination: Combination, method: str, limits: Limits) -> None:
        self.combination, self.method, self.limits = combination, method, limits
        self.gap, self.iterations, self.converged = torch.inf, 0, False
        self._best, self._stalled = -torch.inf, 0
        self._unit = 16 * torch.finfo(torch.float64).eps * combination.magnitude()

    def query(self) -> tuple[Tensor, Tensor]:
        """The scores for which the best structure is wanted next."""
        if self.method == "active_set":
            self.combination.optimize()
        return self.combination.residual()

    def answer(self, code: Tensor, parts: Tensor, extras: Tensor) -> bool:
        """Takes that structure and says whether to go on."""
        at = self.combination
        level = at.level
        value = at.value(parts, extras) - at.features(parts, extras) @ at.marginals
        self.iterations += 1
        self.gap = max(float(value - level), 0.0)
        rounding = self._unit * (8 + len(at.parts))
        shortfall = float(level - value)
        check_best(shortfall if shortfall > max(self.limits.tol, 8 * rounding) else 0.0)
        self.converged = self.gap <= max(self.limits.tol, rounding)
        if self.converged or self.iterations >= self.limits.max_iter:
            return False
        if self.method != "active_set":
            self._step(code, parts, extras, value, level)
            return True
        objective = float(at.weights @ at.values + level)
        self._stalled = 0 if objective > self._best else self._stalled + 1
        self._best = max(self._best, objective)
        if at.find(parts, extras) is not None or self._stalled == MAX_STALLED:
            return False
        at.add(code, parts, extras, 0.0)
        return True

    def _step(
        self, code: Tensor, parts: Tensor, extras: Tensor, value: Tensor, level: Tensor
    ) -> None:
        """Moves towards the structure, away from the worst one here, or from this to that."""
        at, u = self.combination, self.combination.marginals
        rows, row = at.matrix, at.features(parts, extras)
        least, worst = (at.values - rows @ u).min(0)
        if self.method == "away" and value - level < level - least:
            max_step = at.weights[worst] / (1 - at.weights[worst])
            step = _line_search(level - least, u - rows[worst], max_step)
            at.weights = at.weights * (1 + step)
            at.weights[worst] = torch.where(step == max_step, 0.0, at.weights[worst] - step)
        else:
            pairwise = self.method == "pairwise"
            max_step = at.weights[worst] if pairwise else torch.ones_like(level)
            base, start = (least, rows[worst]) if pairwise else (level, u)
            step = _line_search(value - base, row - start, max_step)
            if pairwise:
                at.weights = at.weights.clone()
                at.weights[worst] = torch.where(step == max_step, 0.0, at.weights[worst] - step)
            else:
                at.weights = at.weights * (1 - step)
            place = at.find(parts, extras)
            if place is None:
                at.append(code, parts, extras, float(step))
            else:
                at.weights[place] += step
        at.keep(at.weights > 0)


def _start(combination: Combination, columns: Columns, weights: Tensor, b: int) -> None:
    """Starts from the structures (B, K, ...) with weights (B, K) that a solution may hold."""
    for k in range(weights.shape[1]):
        parts, extras = columns.parts[b, k], columns.extras[b, k]
        if not weights[b, k] > 0 or not combination.may_hold(parts, extras):
            continue
        if combination.find(parts, extras) is None:
            combination.add(columns.codes[b, k], parts, extras, float(weights[b, k]))


def _line_search(slope: Tensor, direction: Tensor, max_step: Tensor) -> Tensor:
    """Where slope t − ½|direction|² t² is largest in [0, max_step]."""
    curve = direction @ direction
    return torch.where(slope < max_step * curve, slope / curve, max_step)


def solve(
    oracle: Oracle,
    scores: Tensor,
    extra_scores: Tensor,
    start: tuple[Columns, Tensor] | None,
    method: str,
    limits: Limits,
    regularize: bool,
) -> tuple[Tensor, Tensor, Support, Outcome]:
    """SparseMAP of a batch by any oracle.

    Args:
        oracle: the best structure of each instance.
        scores: (B, parts) in float64.
        extra_scores: (B, extras) in float64; extras may be 0.
        start: structures (B, K, ...) and their weights (B, K) to start from.
        method, limits, regularize: as for the native `solve`.
    Returns:
        As the native `solve`, with indicators instead of indices in the support.
    """
    every_instance = torch.arange(len(scores))
    first = oracle(scores, extra_scores, every_instance)
    instances = []
    for b in range(len(scores)):
        best = first.parts[b], first.extras[b]
        combination = Combination(scores[b], extra_scores[b], regularize, best)
        if start is not None:
            _start(combination, start[0], start[1], b)
        if not combination.parts:
            combination.add(first.codes[b], *best, 1.0)
        combination.weights /= combination.weights.sum()
        instances.append(_Instance(combination, method, limits))
    active = first.found.nonzero().flatten().tolist()
    while active:
        asked = [instances[b].query() for b in active]
        places = torch.tensor(active)
        found = oracle(*(torch.stack(rows) for rows in zip(*asked, strict=True)), places)
        active = [
            b
            for i, b in enumerate(active)
            if instances[b].answer(found.codes[i], found.parts[i], found.extras[i])
        ]
    weights, support, outcome = _gather(instances, first)
    marginals = torch.einsum("bk,bkn->bn", weights, support.parts)
    return leave_unsolved(scores, extra_scores, first.found, marginals, weights, support, outcome)


def _gather(instances: list[_Instance], first: Columns) -> tuple[Tensor, Support, Outcome]:
    """The solutions, padded to the widest support."""
    found = first.found
    combinations = [instance.combination for instance in instances]
    for combination in combinations:
        combination.keep_independent()
    counts = [len(combination.parts) for combination in combinations]
    sizes = torch.tensor(counts, dtype=torch.int64) * found
    width = max(sizes.tolist(), default=0)

    def stacked(rows: list[list[Tensor]], like: Tensor, filling: float) -> Tensor:
        full = like.new_full((len(rows), width, *like.shape[1:]), filling)
        for b, row in enumerate(rows):
            if found[b]:
                full[b, : len(row)] = torch.stack(row)
        return full

    factor = torch.eye(width, dtype=torch.float64).repeat(len(sizes), 1, 1)
    weights = torch.zeros(len(sizes), width, dtype=torch.float64)
    for b in found.nonzero().flatten().tolist():
        size = int(sizes[b])
        factor[b, :size, :size] = combinations[b].factor().T
        weights[b, :size] = combinations[b].weights / combinations[b].weights.sum()
    outcome = Outcome(
        torch.tensor([i.gap for i in instances], dtype=torch.float64),
        torch.tensor([i.iterations for i in instances], dtype=torch.int64),
        torch.tensor([i.converged for i in instances], dtype=torch.bool),
        missed=0,
    )
    support = Support(
        stacked([c.codes for c in combinations], first.codes, -1),
        stacked([c.parts for c in combinations], first.parts, 0),
        stacked([c.extras for c in combinations], first.extras, 0),
        factor,
        sizes,
        torch.zeros_like(outcome.converged),
    )
    return weights, support, outcome


def leave_unsolved(
    scores: Tensor,
    extra_scores: Tensor,
    found: Tensor,
    marginals: Tensor,
    weights: Tensor,
    support: Support,
    outcome: Outcome,
) -> tuple[Tensor, Tensor, Support, Outcome]:
    """What `solve` returns, from what was found where there is a structure.

    Elsewhere marginals are zero, or NaN if scores have NaN or +inf.
    """
    bad = ~((scores < torch.inf).all(-1) & (extra_scores < torch.inf).all(-1))
    filling = torch.where(bad, torch.nan, 0.0).double()
    marginals = torch.where(found.unsqueeze(-1), marginals, filling.unsqueeze(-1))
    converged = torch.where(found, outcome.converged, ~bad)
    gap = torch.where(found, outcome.gap, filling)
    missed = int((~converged).sum())
    support = support._replace(has_face=support.has_face | ~found)
    return marginals, weights, support, Outcome(gap, outcome.iterations, converged, missed)


def jacobian(
    support: Support, parts: Tensor | None, extras: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As the native `jacobian`, for a support of indicators."""
    inside = torch.arange(support.parts.shape[1]) < support.sizes.unsqueeze(-1)
    right = torch.zeros_like(inside, dtype=torch.float64)
    right = right if weights is None else right + weights
    for rows, vector in ((support.parts, parts), (support.extras, extras)):
        if vector is not None:
            right = right + torch.einsum("bkn,bn->bk", rows, vector)
    both = torch.stack([torch.where(inside, right, 0.0), inside.double()], -1)
    x, flat = torch.cholesky_solve(both, support.factor, upper=True).unbind(-1)
    shift = x.sum(-1, keepdim=True) / flat.sum(-1, keepdim=True).clamp(min=1e-300)
    x = torch.where(inside, x - shift * flat, 0.0)
    out = [torch.einsum("bk,bkn->bn", x, rows) for rows in (support.parts, support.extras)]
    return out[0], out[1], x
