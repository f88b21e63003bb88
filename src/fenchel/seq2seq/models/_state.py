"""What decoding carries from step to step."""

from __future__ import annotations

import torch
from torch import Tensor

State = dict[str, Tensor]
"""Tensors by name, each with the items as its first dimension, so that items can be selected and
repeated with `index_select`."""


def places(source: Tensor, lengths: Tensor) -> Tensor:
    """(B, S), true where there is a token and false at padding."""
    return torch.arange(source.shape[1], device=source.device) < lengths.unsqueeze(1)
