"""Random choices, and how many instances to work on at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

MAX_NUMBERS = 2**24
"""How many numbers an algorithm may keep at once, if it can do with so few."""


def uniform(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Numbers in [0, 1) in float64, on the device of a tensor."""
    return torch.rand(shape, dtype=torch.float64, device=like.device, generator=generator)


def draw(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """Indices (...) with probabilities ∝ exp(log_weights), (..., K) in float64.

    An index of weight zero is drawn only if all weights are zero.
    """
    top = log_weights.amax(-1, keepdim=True)
    weights = (log_weights - torch.where(top == -torch.inf, 0.0, top)).exp()
    ends = weights.cumsum(-1)
    point = uniform(ends, tuple(ends.shape[:-1]), generator) * ends[..., -1]
    return (ends <= point.unsqueeze(-1)).sum(-1).clamp(max=ends.shape[-1] - 1)


def flip(log_odds: Tensor, generator: torch.Generator | None) -> Tensor:
    """Booleans, true with the probability 1/(1 + exp(−log_odds))."""
    return uniform(log_odds, tuple(log_odds.shape), generator) < log_odds.sigmoid()


def chunks(indices: Tensor, numbers: int) -> Iterator[Tensor]:
    """The indices (N,) in pieces, if each of them needs so many numbers."""
    if len(indices):
        yield from indices.split(max(1, MAX_NUMBERS // numbers))


def select(
    instances: Tensor, scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The scores (B, …), extra scores (B or 1, …) and lengths (B, k) of some instances, (N,)."""
    if extra_scores is not None and len(extra_scores) == len(scores):
        extra_scores = extra_scores[instances]
    return scores[instances], extra_scores, None if lengths is None else lengths[instances]
