"""The derivative of projections in closed form."""

from __future__ import annotations

import torch
from torch import Tensor


def follow(y: Tensor, scores: Tensor, bound: Tensor | bool) -> Tensor:
    """The projection y (B, d) of scores, with its derivative of every order.

    Entries strictly between zero and one move with their scores; where their sum is `bound`, less
    the mean of these. Others stay.
    """
    free = (y > 0) & (y < 1)
    own = torch.where(free, scores, 0.0)
    mean = own.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    shift = torch.where(bound, mean, 0.0) if isinstance(bound, Tensor) else mean * bound
    moving = torch.where(free, own - shift, 0.0)
    return y.detach() + (moving - moving.detach())
