"""Sums and maxima over all members of a small structure."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.structures import AbstractStructure


def values(structure: AbstractStructure, scores: Tensor) -> Tensor:
    """The score of every member, (B, K)."""
    members = structure.members().to(scores).flatten(1)
    parts = torch.where(members == 0, 0.0, scores.flatten(1).unsqueeze(1) * members)
    return parts.sum(-1)


def log_partition(structure: AbstractStructure, scores: Tensor) -> Tensor:
    return values(structure, scores).logsumexp(1)


def marginals(structure: AbstractStructure, scores: Tensor) -> Tensor:
    every = values(structure, scores)
    none = (every == -torch.inf).all(1, keepdim=True)
    shares = torch.where(none, 0.0, torch.where(none, 0.0, every).softmax(1))
    return (shares @ structure.members().to(scores).flatten(1)).reshape(scores.shape)


def scores_of_every_kind(structure: AbstractStructure, copies: int = 4) -> dict[str, Tensor]:
    """Batches of random scores of several scales, with ties, and with forbidden parts."""
    shape = (copies, *structure.shape)
    scores = {
        f"{scale:g}": scale * torch.randn(shape, dtype=torch.float64)
        for scale in (0.01, 1.0, 30.0, 1000.0, 1e6)
    }
    scores["ties"] = torch.randn(shape, dtype=torch.float64).round()
    scores["zeros"] = torch.zeros(shape, dtype=torch.float64)
    for name, scale in (("forbidden", 1.0), ("forbidden, large", 1000.0)):
        masked = scale * torch.randn((5 * copies, *structure.shape), dtype=torch.float64)
        masked[torch.rand(masked.shape) < 0.4] = -torch.inf
        masked[0] = -torch.inf
        scores[name] = masked
    return scores
