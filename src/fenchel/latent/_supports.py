"""Sparse distributions from scores: by a mapping, by SparseMAP, or among the k best."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mappings import AbstractMapping
from ..mappings._sparsemax import sparsemax
from ..structures._base import AbstractStructure
from ..structures._bits import Bits
from ..structures._choice import Choice
from ..structures._coded import CodedStructure
from ..structures._posterior import Posterior
from ..structures._sparsemap import sparsemap
from ._distributions import Table
from ._k_best import k_best


def by_mapping(mapping: AbstractMapping, scores: Tensor) -> Table:
    """A slot for each of the K categories."""
    problem = Choice(scores.shape[-1]).problem(scores)
    p = mapping(scores).reshape(problem.scores.shape)
    everything = torch.ones(len(p), dtype=torch.bool, device=p.device)
    return Table(problem, p, lambda item, slot: slot, lambda: p, everything)


def by_structure(structure: AbstractStructure, scores: Tensor) -> Table:
    """A slot for each structure in the support of SparseMAP."""
    return by_posterior(sparsemap(structure, scores))


def by_posterior(posterior: Posterior) -> Table:
    """A slot for each structure of a posterior."""
    problem = posterior._problem
    structure, like = problem.structure, problem.scores
    codes = posterior.structures
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


def by_top_k(mapping: AbstractMapping, scores: Tensor, k: int, most: int | None) -> Table:
    """A slot for each of the k largest scores; k doubles until the last of them gets nothing."""
    d = scores.shape[-1]
    problem = Choice(d).problem(scores)
    most = d if most is None else min(most, d)
    k = min(k, most)
    while True:
        top, places = scores.topk(k, dim=-1)
        weights = mapping(top)
        exact = (weights[..., -1] == 0) | (k == d)
        if k == most or bool(exact.all()):
            break
        k = min(2 * k, most)
    weights, places = weights.reshape(-1, k), places.reshape(-1, k)

    def mean() -> Tensor:
        return torch.zeros_like(problem.scores).scatter(1, places, weights.to(problem.scores.dtype))

    return Table(problem, weights, lambda item, slot: places[item, slot], mean, exact.reshape(-1))


def by_top_k_bits(structure: Bits, scores: Tensor, k: int, most: int) -> Table:
    """A slot for each of the k best configurations, for sparsemax of ⟨θ, z⟩; k doubles likewise."""
    problem = structure.problem(scores)
    theta = problem.scores
    all_of_them = 2**structure.d
    most = min(most, all_of_them)
    k = min(k, most)
    while True:
        sets = k_best(theta, k)
        weights = sparsemax(torch.where(sets, theta.unsqueeze(1), 0.0).sum(-1))
        exact = (weights[:, -1] == 0) | (k == all_of_them)
        if k == most or bool(exact.all()):
            break
        k = min(2 * k, most)
    bits = sets.to(theta.dtype)

    def mean() -> Tensor:
        return (weights.unsqueeze(-1) * bits).sum(1)

    return Table(problem, weights, lambda item, slot: bits[item, slot], mean, exact)
