"""The noise of perturbed optimizers: independent numbers of mean zero, with a smooth density ρ."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

EULER = 0.5772156649015329
"""The mean of the Gumbel distribution."""


class AbstractNoise(abc.ABC):
    """A distribution of numbers Z of mean zero."""

    @abc.abstractmethod
    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
    ) -> Tensor:
        """Independent numbers of that shape, in float64."""

    @abc.abstractmethod
    def score(self, z: Tensor) -> Tensor:
        """−(log ρ)′(z), of mean zero."""

    @abc.abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """log ρ(z), but for a constant."""

    @abc.abstractmethod
    def kl(self, shift: Tensor) -> Tensor:
        """The divergence of Z + shift from Z."""


class Gaussian(AbstractNoise):
    """The standard normal distribution."""

    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
    ) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, device=device, generator=generator)

    def score(self, z: Tensor) -> Tensor:
        return z

    def log_density(self, z: Tensor) -> Tensor:
        return -z.square() / 2

    def kl(self, shift: Tensor) -> Tensor:
        return shift.square() / 2


class Gumbel(AbstractNoise):
    """The Gumbel distribution, less its mean."""

    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
    ) -> Tensor:
        uniform = torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
        times = -torch.log1p(-uniform)
        return -times.clamp(min=torch.finfo(times.dtype).tiny).log() - EULER

    def score(self, z: Tensor) -> Tensor:
        return -torch.expm1(-z - EULER)

    def log_density(self, z: Tensor) -> Tensor:
        return -z - EULER - (-z - EULER).exp()

    def kl(self, shift: Tensor) -> Tensor:
        return shift + torch.expm1(-shift)


KINDS: dict[str, AbstractNoise] = {"gaussian": Gaussian(), "gumbel": Gumbel()}
