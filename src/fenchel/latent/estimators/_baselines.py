"""What a score-function estimator subtracts from the losses, to vary less."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

from ... import _checks
from .._distributions import AbstractSampled
from .._expectation import LossFn, evaluate
from ._base import items_of


class AbstractBaseline(nn.Module, abc.ABC):
    """From a batch, but not from its samples, to a value for each item."""

    extra_calls: int = 0
    """How often it calls the loss function for each item."""

    @abc.abstractmethod
    def forward(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor,
        chunk: int | None,
    ) -> Tensor:
        """The baseline (B), or a number for all."""

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        """After the losses (samples, B), detached, are known: what to minimize, (B), or None."""
        return None


class MovingAverage(AbstractBaseline):
    """The mean of earlier losses, the recent ones counting most.

    Args:
        decay: in [0, 1), by how much the weight of a batch shrinks with each that follows.
    """

    average: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        _checks.fraction("decay", decay)
        self.decay = decay
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def forward(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor,
        chunk: int | None,
    ) -> Tensor:
        return self.average.clone()

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        if losses.numel():
            self.weight.mul_(self.decay).add_(1 - self.decay)
            share = (1 - self.decay) / self.weight
            self.average.lerp_(losses.mean().to(self.average), share)

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class SelfCritic(AbstractBaseline):
    """The loss of the most probable outcome, for one more call of the loss function.

    References: rennie2017self.
    """

    extra_calls = 1

    def forward(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor,
        chunk: int | None,
    ) -> Tensor:
        with torch.no_grad():
            return evaluate(loss_fn, items_of(distribution), distribution.mode(), chunk)


class Learned(AbstractBaseline):
    """A network's prediction of the loss, learnt along with the model by least squares (NVIL).

    Its squared error is part of the expectation's gradient, but not of its value, and reaches the
    network's parameters alone; give them to the optimizer.

    Args:
        network: from the context (B, F) of `marginalize` to (B, 1) or (B).

    References: mnih2014neural.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor,
        chunk: int | None,
    ) -> Tensor:
        return _checks.predictions(self.network(context.detach()), len(context))

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        return (baseline - losses).square().mean(0)
