"""Entmax whose alpha is learnt: α = 1 + sigmoid(parameter), between softmax and sparsemax."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..mappings import AbstractMapping
from ..mappings._entmax import Entmax
from ..nn import Mapping
from ._problem import broadcasts


class WithoutAlpha(Mapping):
    """Entmax with the γ of another. The layer that holds this learns α."""

    def __init__(self, mapping: AbstractMapping) -> None:
        super().__init__(Entmax(gamma=mapping.gamma))

    def extra_repr(self) -> str:
        return super().extra_repr().replace(f"alpha={Entmax().alpha}", "alpha=learned")


def initial_alpha(mapping: AbstractMapping, heads: int) -> list[float]:
    """The mapping's own alpha, for each head."""
    if not isinstance(mapping, Entmax):
        raise ValueError(f"`learned_alpha` is for entmax, got {mapping.name}.")
    if isinstance(mapping.alpha, Tensor) and mapping.alpha.is_meta:
        raise ValueError(
            "`alpha` must have a value from which it is learnt, got a tensor on the device meta; "
            "give a number, or a tensor on the CPU."
        )
    alpha = torch.as_tensor(mapping.alpha, device="cpu")  # the default device may be meta
    if not bool(((alpha > 1) & (alpha < 2)).all()):
        raise ValueError(f"`alpha` must be between 1 and 2 to be learnt, got {mapping.alpha}.")
    if not broadcasts(alpha.shape, (heads, 1, 1)):
        raise ValueError(
            f"`alpha` must broadcast to ({heads}, 1, 1), one for each head, to be learnt; got "
            f"shape {tuple(alpha.shape)}."
        )
    return alpha.expand(heads, 1, 1).flatten().tolist()


def alpha_logit(mapping: AbstractMapping, heads: int) -> Tensor:
    """The parameters, (heads,), at which 1 + sigmoid(parameter) is the mapping's own alpha."""
    alpha = torch.tensor(initial_alpha(mapping, heads), dtype=torch.get_default_dtype())
    return torch.logit(alpha - 1)


@torch.no_grad()
def reset_alpha(logit: Tensor, alpha: list[float]) -> None:
    """Sets the parameters (heads,) to those of an alpha for each head."""
    if len(set(alpha)) == 1:  # of which a parameter that is sharded needs no part
        logit.fill_(math.log((alpha[0] - 1) / (2 - alpha[0])))
    else:
        logit.copy_(torch.logit(torch.tensor(alpha, dtype=logit.dtype, device=logit.device) - 1))


def learned(mapping: AbstractMapping, logit: Tensor) -> Entmax:
    """Entmax with α = 1 + sigmoid(logit), and the mapping's γ."""
    return Entmax(1 + torch.sigmoid(logit), gamma=mapping.gamma)
