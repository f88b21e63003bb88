"""Small models whose expectations can be enumerated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.latent import embed


@dataclass
class Categories:
    """B items, K categories, and a loss with a parameter of its own."""

    scores: Tensor
    weight: Tensor
    x: Tensor

    @classmethod
    def random(cls, items: int = 3, categories: int = 5, scale: float = 1.0) -> Categories:
        scores = (torch.randn(items, categories).double() * scale).requires_grad_()
        weight = torch.randn(categories, 2).double().requires_grad_()
        return cls(scores, weight, torch.randn(items, 2).double())

    @property
    def parameters(self) -> list[Tensor]:
        return [self.scores, self.weight]

    def loss(self, item: Tensor, z: Tensor) -> Tensor:
        """Of indices, or of points of the simplex."""
        return (embed(z, self.weight) - self.x[item]).square().sum(-1)

    def table(self) -> Tensor:
        """The losses of all pairs, (B, K)."""
        b, k = self.scores.shape
        item = torch.arange(b).repeat_interleave(k)
        return self.loss(item, torch.arange(k).repeat(b)).reshape(b, k)


@dataclass
class Configurations:
    """B items, D bits, and a loss with a parameter of its own."""

    scores: Tensor
    weight: Tensor
    x: Tensor

    @classmethod
    def random(cls, items: int = 2, bits: int = 3) -> Configurations:
        scores = torch.randn(items, bits).double().requires_grad_()
        weight = torch.randn(bits, 2).double().requires_grad_()
        return cls(scores, weight, torch.randn(items, 2).double())

    @property
    def parameters(self) -> list[Tensor]:
        return [self.scores, self.weight]

    def loss(self, item: Tensor, z: Tensor) -> Tensor:
        return ((z @ self.weight) - self.x[item]).square().sum(-1)

    def all_configurations(self) -> Tensor:
        """All configurations, (2^D, D)."""
        d = self.scores.shape[-1]
        return torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * d).reshape(-1, d)

    def table(self) -> Tensor:
        """The losses of all pairs, (B, 2^D)."""
        z, b = self.all_configurations(), len(self.scores)
        item = torch.arange(b).repeat_interleave(len(z))
        return self.loss(item, z.repeat(b, 1)).reshape(b, -1)

    def probabilities(self) -> Tensor:
        """Those of independent bits, (B, 2^D)."""
        z, p = self.all_configurations(), self.scores.sigmoid().unsqueeze(1)
        return torch.where(z > 0, p, 1 - p).prod(-1)


def gradients(value: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), parameters))
