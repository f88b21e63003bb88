"""Sparse distributions from scores: by a mapping, by SparseMAP, or among the k best."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..mappings import AbstractMapping
from ..mappings._sparsemax import sparsemax
from ..structures._bits import Bits
from ..structures._choice import Choice
from ..structures._coded import CodedStructure
from ..structures._posterior import Posterior
from ._distributions import Table
from ._k_best import k_best


def from_mapping(mapping: AbstractMapping, scores: Tensor) -> Table:
    """A slot for each of the K categories."""
    problem = Choice(scores.shape[-1]).problem(scores)
    p = mapping(scores).reshape(problem.scores.shape)
    exact = torch.ones(len(p), dtype=torch.bool, device=p.device)
    return Table(problem, p, lambda item, slot: slot, lambda: p, exact)


def from_posterior(posterior: Posterior) -> Table:
    """A slot for each structure of a posterior."""
    problem = posterior._problem
    structure, like = problem.structure, problem.scores
    codes = posterior.codes
    codes = codes.reshape(len(like), *codes.shape[len(problem.batch) :])

    def outcome(item: Tensor, slot: Tensor) -> Tensor:
        chosen = codes[item, slot]
        if not isinstance(structure, CodedStructure):
            return chosen.to(like.dtype)
        if isinstance(structure, Choice):
            return chosen.squeeze(-1)
        if structure.options_dim is None:  # bits, which are −1 behind the end of an instance
            return chosen.to(like.dtype).clamp(min=0)
        return structure.indicator(chosen, like.dtype)

    weights = posterior.weights.reshape(codes.shape[:2]).to(like.dtype)
    exact = posterior.converged.reshape(-1)
    return Table(problem, weights, outcome, lambda: posterior.marginals.reshape(like.shape), exact)


def from_top_k(mapping: AbstractMapping, scores: Tensor, k: int, max_k: int | None) -> Table:
    """A slot for each of the k largest scores; k doubles until the last has probability zero."""
    d = scores.shape[-1]
    problem = Choice(d).problem(scores)

    def solve(k: int) -> tuple[Tensor, Tensor]:
        top, categories = scores.topk(k, dim=-1)
        return mapping(top), categories

    weights, categories, exact = _double(solve, k, d if max_k is None else max_k, d)
    width = weights.shape[-1]
    weights, categories = weights.reshape(-1, width), categories.reshape(-1, width)

    def mean() -> Tensor:
        zeros = torch.zeros_like(problem.scores)
        return zeros.scatter(1, categories, weights.to(zeros.dtype))

    def outcome(item: Tensor, slot: Tensor) -> Tensor:
        return categories[item, slot]

    return Table(problem, weights, outcome, mean, exact.reshape(-1))


def from_top_k_bits(structure: Bits, scores: Tensor, k: int, max_k: int) -> Table:
    """A slot for each of the k best configurations z, for sparsemax of ⟨θ, z⟩; k doubles, too."""
    problem = structure.problem(scores)
    theta = problem.scores
    theta = torch.where(theta.isnan().any(1, keepdim=True), torch.nan, theta)

    def solve(k: int) -> tuple[Tensor, Tensor]:
        sets = k_best(theta, k)
        return sparsemax(torch.where(sets, theta.unsqueeze(1), 0.0).sum(-1)), sets

    weights, sets, exact = _double(solve, k, max_k, 2**structure.d)
    bits = sets.to(theta.dtype)

    def mean() -> Tensor:
        return (weights.unsqueeze(-1) * bits).sum(1)

    return Table(problem, weights, lambda item, slot: bits[item, slot], mean, exact)


def _double(
    solve: Callable[[int], tuple[Tensor, Tensor]], k: int, max_k: int, num_outcomes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights (..., k) and outcomes of the k best of all, and whether none is missing, (...).

    `solve(k)` gives weights and outcomes, best first; k doubles until the last weights are zero.
    """
    max_k = min(max_k, num_outcomes)
    k = min(k, max_k)
    while True:
        weights, outcomes = solve(k)
        exact = (weights[..., -1] == 0) | (k == num_outcomes)
        if k == max_k or bool(exact.all()):
            return weights, outcomes, exact
        k = min(2 * k, max_k)
