"""Baselines: what a score-function estimator subtracts from the losses to reduce its variance."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ... import _checks
from .._checks import check_predictions
from .._distributions import AbstractSampled
from .._expectation import Loss
from ._base import repeat_items


class AbstractBaseline(nn.Module, abc.ABC):
    """A value for each item, which must not depend on the samples.

    >>> from fenchel.latent import estimators, marginalize
    >>> class Half(AbstractBaseline):
    ...     def forward(self, distribution, loss, context):
    ...         return context.new_tensor(0.5)
    >>> estimator = estimators.ScoreFunction(baseline=Half(), samples=3)
    >>> marginalize(torch.zeros(1, 3), lambda item, z: z.float(), estimator).calls
    tensor([3])
    """

    extra_calls: int = 0
    """How often it calls the loss function for each item."""
    min_samples: int = 1
    """How many samples of each item it needs."""

    @abc.abstractmethod
    def forward(self, distribution: AbstractSampled, loss: Loss, context: Tensor) -> Tensor:
        """The baseline of each item, (B), or of all, a scalar; `context` is (B, F)."""

    def of_samples(self, baseline: Tensor, losses: Tensor) -> Tensor:
        """That of each sample, (samples, B), which may depend on the detached losses of the other
        samples."""
        return baseline.expand_as(losses)

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        """Learns from the detached losses (samples, B); returns what to minimize, (B), or None."""
        return None


class MovingAverage(AbstractBaseline):
    """The exponential moving average of earlier losses that are finite, in float32 or float64.

    Args:
        decay: in [0, 1), the factor by which the weight of a batch shrinks with every later one.

    >>> from fenchel.latent import estimators, marginalize
    >>> estimator = estimators.ScoreFunction(baseline=MovingAverage(0.9), samples=1)
    >>> marginalize(torch.zeros(1, 3), lambda item, z: z.float(), estimator).calls
    tensor([1])
    """

    average: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        _checks.check_fraction("decay", decay)
        self.decay = decay
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # In half precision steps of a hundredth of the distance would be lost.
        wide = torch.promote_types(self.average.dtype, torch.float32)
        self.average, self.weight = self.average.to(wide), self.weight.to(wide)
        return self

    def forward(self, distribution: AbstractSampled, loss: Loss, context: Tensor) -> Tensor:
        return self.average.clone()

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        known = losses.isfinite()
        share = (1 - self.decay) * known.any().to(self.weight)  # zero if there is none
        mean = torch.where(known, losses, 0.0).to(self.average).sum() / known.sum().clamp(min=1)
        self.weight.mul_(1 - share).add_(share)
        self.average.lerp_(mean, share / self.weight.clamp(min=1 - self.decay))

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class SelfCritic(AbstractBaseline):
    """The loss of the most probable outcome, at the cost of one more call of the loss function.

    >>> from fenchel.latent import estimators, marginalize
    >>> estimator = estimators.ScoreFunction(baseline=SelfCritic(), samples=1)
    >>> marginalize(torch.zeros(1, 3), lambda item, z: z.float(), estimator).calls
    tensor([2])

    References: rennie2017self.
    """

    extra_calls = 1

    def forward(self, distribution: AbstractSampled, loss: Loss, context: Tensor) -> Tensor:
        with torch.no_grad():
            return loss(repeat_items(distribution), distribution.mode())


class LeaveOneOut(AbstractBaseline):
    """For each sample the mean loss of the other samples of its item, which it needs two of.

    >>> from fenchel.latent import estimators, marginalize
    >>> estimator = estimators.ScoreFunction(baseline=LeaveOneOut(), samples=2)
    >>> marginalize(torch.zeros(1, 3), lambda item, z: z.float(), estimator).calls
    tensor([2])

    References: kool2019buy.
    """

    min_samples = 2

    def forward(self, distribution: AbstractSampled, loss: Loss, context: Tensor) -> Tensor:
        return context.new_zeros(())

    def of_samples(self, baseline: Tensor, losses: Tensor) -> Tensor:
        return (losses.sum(0) - losses) / (len(losses) - 1)


class Learned(AbstractBaseline):
    """A network's prediction of the loss, learnt along with the model by least squares (NVIL).

    Its squared error is added to the expectation's gradient, but not to its value. Only the
    network's parameters receive this gradient; give them to the optimizer.

    Args:
        network: from the context (B, F) of `marginalize` to (B, 1) or (B).

    >>> from fenchel.latent import estimators, marginalize
    >>> network = nn.Linear(3, 1)
    >>> estimator = estimators.ScoreFunction(baseline=Learned(network))
    >>> marginalize(torch.ones(1, 3), lambda item, z: 5.0 + z, estimator).value.sum().backward()
    >>> network.weight.grad.shape
    torch.Size([1, 3])

    References: mnih2014neural.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise TypeError(
                f"`network` must be a torch.nn.Module, got {_checks.type_name(network)}."
            )
        self.network = network

    def forward(self, distribution: AbstractSampled, loss: Loss, context: Tensor) -> Tensor:
        return check_predictions(self.network(context.detach()), len(context))

    def learn(self, baseline: Tensor, losses: Tensor) -> Tensor | None:
        return (baseline - losses).square().mean(0)
