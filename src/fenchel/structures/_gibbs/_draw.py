"""Random choices."""

from __future__ import annotations

import torch
from torch import Tensor


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
