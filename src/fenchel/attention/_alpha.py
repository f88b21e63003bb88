"""Entmax whose alpha is learnt: α = 1 + sigmoid(parameter), between softmax and sparsemax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mappings import AbstractMapping
from ..mappings._entmax import Entmax


def alpha_logit(mapping: AbstractMapping, heads: int) -> Tensor:
    """The parameters, (heads,), at which 1 + sigmoid(parameter) is the mapping's own alpha."""
    if not isinstance(mapping, Entmax):
        raise ValueError(f"`learned_alpha` is for entmax, got {mapping.name}.")
    on_cpu = torch.as_tensor(mapping.alpha, device="cpu")  # the default device may be meta
    if not bool(((on_cpu > 1) & (on_cpu < 2)).all()):
        raise ValueError(f"`alpha` must be between 1 and 2 to be learnt, got {mapping.alpha}.")
    alpha = torch.as_tensor(mapping.alpha, dtype=torch.get_default_dtype())
    return torch.logit(alpha - 1).repeat(heads)


def learned(mapping: AbstractMapping, logit: Tensor) -> Entmax:
    """Entmax with α = 1 + sigmoid(logit), and the mapping's γ."""
    return Entmax(1 + torch.sigmoid(logit), gamma=mapping.gamma)
