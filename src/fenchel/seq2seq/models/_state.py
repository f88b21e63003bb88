"""What decoding carries from step to step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]
"""Tensors and caches by name. The first dimension of each is the items, so that `index_select`
reorders and repeats items."""


def token_mask(source: Tensor, lengths: Tensor) -> Tensor:
    """(B, S), true at tokens and false at padding."""
    return torch.arange(source.shape[1], device=source.device) < lengths.unsqueeze(1)
