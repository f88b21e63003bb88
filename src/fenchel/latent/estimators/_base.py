"""What every estimator is, and what those that sample share."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor, nn

from ... import _checks
from ...mappings import AbstractMapping, get
from ...mappings._softmax import Softmax
from ...nn import Mapping
from ...structures._bits import Bits
from ...structures._choice import Choice
from .._checks import check_distribution
from .._distributions import (
    AbstractDistribution,
    AbstractSampled,
    Bernoulli,
    Categorical,
    Table,
)
from .._expectation import Expectation, Loss, LossFn


class AbstractEstimator(nn.Module, abc.ABC):
    """From scores and a function of outcomes to an expectation.

    It is a module, since some keep an average or learn a baseline: `train()` and `eval()` set the
    mode, and `parameters()` go to the optimizer.
    """

    @abc.abstractmethod
    def distribution(self, scores: Tensor) -> Table | AbstractSampled:
        """The distribution of each item's outcomes."""

    @abc.abstractmethod
    def estimate(self, distribution: Any, loss: Loss) -> Expectation:
        """The expectation of the loss under a distribution that `distribution` returned."""

    def forward(
        self,
        scores: Tensor,
        loss_fn: LossFn,
        context: Tensor | None = None,
        chunk: int | None = None,
    ) -> Expectation:
        """As `latent.marginalize`, which calls it."""
        return self.estimate(self.distribution(scores), Loss(loss_fn, chunk, context))


class AbstractOver(AbstractEstimator):
    """An estimator under a distribution that a mapping or a structure makes of the scores.

    Args:
        over: the mapping or the structure. The module holds a mapping's tensors as parameters and
            buffers, as `fenchel.nn.Mapping` does.
    """

    def __init__(self, over: Any) -> None:
        super().__init__()
        learns = isinstance(over, AbstractMapping) and any(
            isinstance(value, Tensor) for value in vars(over).values()
        )
        self._over = Mapping(over) if learns else over

    @property
    def over(self) -> Any:
        """The structure, or the mapping with the module's present tensors."""
        return self._over.mapping if isinstance(self._over, Mapping) else self._over

    @staticmethod
    def resolve(over: Any) -> Any:
        """The mapping of that name; anything but a name is returned as it is."""
        return get(over) if isinstance(over, str) else over


class AbstractSampler(AbstractOver):
    """An estimator that samples outcomes in training and takes the most probable in evaluation.

    In evaluation mode it is deterministic: one outcome for each item, no noise, no change of state.
    For an unbiased value use an exact estimator, or training mode under `torch.no_grad()`, without
    a baseline.

    Args:
        over: what turns scores into a distribution: a mapping onto the simplex or its name, or
            `Bits(d)` for independent bits with probabilities 1/(1 + exp(−θ)).
        samples: how many for each item; their mean is taken.
    """

    def __init__(self, over: AbstractMapping | Bits | str | None = None, samples: int = 1) -> None:
        over = Softmax() if over is None else self.resolve(over)
        check_distribution(over, Bits, "`fenchel.Bits(8)`")
        _checks.check_size("samples", samples)
        super().__init__(over)
        self.samples = samples

    def distribution(self, scores: Tensor) -> AbstractSampled:
        if isinstance(self.over, Bits):
            return Bernoulli(self.over.problem(scores))
        _checks.check_float_tensor("scores", scores)
        _checks.check_dim("scores", scores.shape, -1)
        return Categorical(Choice(scores.shape[-1]).problem(scores), self.over, scores)

    def estimate(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        if self.training:
            return self.estimate_by_samples(distribution, loss)
        losses = loss(repeat_items(distribution), self.most_probable(distribution))
        return estimated(distribution, losses, 1)

    def most_probable(self, distribution: AbstractSampled) -> Tensor:
        """The outcome of each item in evaluation mode."""
        return distribution.mode()

    @abc.abstractmethod
    def estimate_by_samples(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        """The estimate in training mode."""

    def extra_repr(self) -> str:
        return f"over={self.over}, samples={self.samples}"


def repeat_items(distribution: AbstractDistribution, samples: int = 1) -> Tensor:
    """The items 0 to B − 1, so many times: (samples · B,)."""
    scores = distribution.problem.scores
    return torch.arange(len(scores), device=scores.device).repeat(samples)


def mean_over_samples(values: Tensor, samples: int) -> Tensor:
    """The mean (B) of values (samples · B,)."""
    return values.reshape(samples, -1).mean(0)


def estimated(distribution: AbstractDistribution, value: Tensor, calls: int) -> Expectation:
    """An expectation that is not exact, after so many calls for each item."""
    scores = distribution.problem.scores
    counts = torch.full((len(scores),), calls, device=scores.device)
    return Expectation(distribution, value, counts, torch.zeros_like(counts, dtype=torch.bool))
