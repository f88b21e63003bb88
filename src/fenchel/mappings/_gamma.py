"""Division and multiplication by a tensor γ. What would be infinite has no derivative in γ."""

from __future__ import annotations

import torch
from torch import Tensor

from .._transforms import is_recorded, is_transformed


def _has_derivative(gamma: Tensor) -> bool:
    return is_recorded() and (gamma.requires_grad or is_transformed())


def divided(x: Tensor, gamma: Tensor) -> Tensor:
    """x / γ. The derivative −x / γ² of an entry without weight is multiplied by zero. Where it is
    infinite, as that of −inf and of large negative numbers, it would be NaN, and with it that of a
    γ for many scores."""
    if not _has_derivative(gamma):
        return x / gamma
    fixed = gamma.detach()
    quotient = x / fixed
    infinite = (quotient / fixed).isinf()
    return torch.where(infinite, quotient, x.masked_fill(infinite, 0.0) / gamma)


def multiplied(x: Tensor, gamma: Tensor) -> Tensor:
    """x · γ, whose derivative is x."""
    if not _has_derivative(gamma):
        return x * gamma
    infinite = x.isinf()
    return torch.where(infinite, x * gamma.detach(), x.masked_fill(infinite, 0.0) * gamma)
