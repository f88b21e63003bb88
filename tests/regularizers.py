"""Regularizers of a weight that is learnt, in every form of a function, and scores for them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fenchel import General

Omega = Callable[[Tensor], Tensor]
TARGET = torch.tensor([2, 0])


def penalty(weight: Tensor, y: Tensor) -> Tensor:
    weight = weight.to(y.dtype)
    return (weight * y * y).sum(-1) / 2 + (weight.sin() * y).sum(-1) ** 4


class Penalty(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight if isinstance(weight, nn.Parameter) else None
        self.held = [weight]

    def forward(self, y: Tensor) -> Tensor:
        return penalty(self.held[0], y)

    def method(self, y: Tensor) -> Tensor:
        return penalty(self.held[0], y)


FORMS: dict[str, Callable[[Tensor], Omega]] = {
    "closure": lambda weight: lambda y: penalty(weight, y),
    "partial": lambda weight: functools.partial(penalty, weight),
    "module": Penalty,
    "method": lambda weight: Penalty(weight).method,
}


def weights() -> Tensor:
    return torch.tensor([0.7, 1.2, 0.9], dtype=torch.float64)


def scores() -> Tensor:
    return torch.tensor([[0.3, -0.2, 0.1], [0.9, 0.2, -3.0]], dtype=torch.float64)


def inputs() -> tuple[Tensor, Tensor]:
    return scores().requires_grad_(), weights().requires_grad_()


def exact(omega: Omega, gamma: float | Tensor = 1.0) -> General:
    return General(omega, tol=1e-14, gamma=gamma)
