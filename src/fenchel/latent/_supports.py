"""Sparse distributions from scores: by a mapping, by SparseMAP, or among the k best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    return Table(problem, p, _slot, partial(_itself, p), exact)


def from_posterior(posterior: Posterior) -> Table:
    """A slot for each structure of a posterior."""
    problem = posterior._problem
    structure, like = problem.structure, problem.scores
    codes = posterior.codes
    codes = codes.reshape(len(like), *codes.shape[len(problem.batch) :])

    outcome = partial(_structure_at, codes, structure, like.dtype)
    weights = posterior.weights.reshape(codes.shape[:2]).to(like.dtype)
    exact = posterior.converged.reshape(-1)
    return Table(problem, weights, outcome, partial(_marginals, posterior, like.shape), exact)


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

    mean = partial(_scattered, torch.zeros_like(problem.scores), categories, weights)
    return Table(problem, weights, partial(_at, categories), mean, exact.reshape(-1))


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

    return Table(problem, weights, partial(_at, bits), partial(_mean, weights, bits), exact)


def _slot(item: Tensor, slot: Tensor) -> Tensor:
    return slot


def _itself(p: Tensor) -> Tensor:
    return p


def _at(outcomes: Tensor, item: Tensor, slot: Tensor) -> Tensor:
    return outcomes[item, slot]


def _structure_at(
    codes: Tensor, structure: Any, dtype: torch.dtype, item: Tensor, slot: Tensor
) -> Tensor:
    """What a loss function is given of structures with codes, or their parts, (B, W, …)."""
    chosen = codes[item, slot]
    if not isinstance(structure, CodedStructure):
        return chosen.to(dtype)
    if isinstance(structure, Choice):
        return chosen.squeeze(-1)
    if structure.options_dim is None:  # bits, which are −1 behind the end of an instance
        return chosen.to(dtype).clamp(min=0)
    return structure.indicator(chosen, dtype)


def _marginals(posterior: Posterior, shape: torch.Size) -> Tensor:
    return posterior.marginals.reshape(shape)


def _scattered(zeros: Tensor, categories: Tensor, weights: Tensor) -> Tensor:
    return zeros.scatter(1, categories, weights.to(zeros.dtype))


def _mean(weights: Tensor, bits: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * bits).sum(1)


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
