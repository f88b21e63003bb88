"""The derivative of projections in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from .._transforms import is_transformed


def with_derivative(y: Tensor, scores: Tensor, fixed_sum: Tensor | bool) -> Tensor:
    """The projection y (B, d) of scores, with derivatives of every order.

    Entries strictly between zero and one move with their scores, others do not move. Where the sum
    is fixed, the mean of these scores is subtracted.
    """
    if not scores.requires_grad and not is_transformed():
        return y
    free = (y > 0) & (y < 1)
    own = torch.where(free, scores, 0.0)
    mean = own.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    shift = torch.where(fixed_sum, mean, 0.0) if isinstance(fixed_sum, Tensor) else mean * fixed_sum
    moving = torch.where(free, own - shift, 0.0)
    return y.detach() + (moving - moving.detach())
