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
from .._distributions import (
    AbstractDistribution,
    AbstractSampled,
    Bernoulli,
    Categorical,
    Table,
)
from .._expectation import Expectation, LossFn, evaluate


class AbstractEstimator(nn.Module, abc.ABC):
    """From scores and a function of outcomes to an expectation.

    A module, since some keep an average or learn a baseline: `train()` and `eval()` say whether
    they are to be trained with, and `parameters()` what to give to the optimizer.
    """

    @abc.abstractmethod
    def distribution(self, scores: Tensor) -> Table | AbstractSampled:
        """The distribution of each item's outcomes."""

    @abc.abstractmethod
    def estimate(
        self, distribution: Any, loss_fn: LossFn, context: Tensor | None, chunk: int | None
    ) -> Expectation:
        """The expectation under a distribution that `distribution` returned."""

    def forward(
        self,
        scores: Tensor,
        loss_fn: LossFn,
        context: Tensor | None = None,
        chunk: int | None = None,
    ) -> Expectation:
        """As `latent.marginalize`, which calls it."""
        return self.estimate(self.distribution(scores), loss_fn, context, chunk)


class AbstractOver(AbstractEstimator):
    """An estimator under a distribution that a mapping or a structure makes of the scores.

    Args:
        over: the mapping or the structure; a mapping's tensors are the module's own, as those of
            `fenchel.nn.Mapping`.
    """

    def __init__(self, over: Any) -> None:
        super().__init__()
        learns = isinstance(over, AbstractMapping) and any(
            isinstance(value, Tensor) for value in vars(over).values()
        )
        self._over = Mapping(over) if learns else over

    @property
    def over(self) -> Any:
        """The mapping, with the tensors that the module has now, or the structure."""
        return self._over.mapping if isinstance(self._over, Mapping) else self._over

    @staticmethod
    def named(over: Any) -> Any:
        """The mapping of that name, or what is given."""
        return get(over) if isinstance(over, str) else over


class AbstractSampler(AbstractOver):
    """An estimator that samples outcomes in training and takes the most probable in evaluation.

    In evaluation mode it is a function of its inputs: one outcome for each item, no noise, no
    change of state. For the expectation itself use an exact estimator, or in training mode one
    without a baseline under `torch.no_grad()`.

    Args:
        over: what turns scores into a distribution: a mapping onto the simplex or its name, or
            `Bits(d)` for independent bits with probabilities 1/(1 + exp(−θ)).
        samples: how many for each item; their mean is taken.
    """

    def __init__(self, over: AbstractMapping | Bits | str | None = None, samples: int = 1) -> None:
        over = Softmax() if over is None else self.named(over)
        _checks.distribution(over, Bits, "`fenchel.Bits(8)`")
        _checks.size("samples", samples)
        super().__init__(over)
        self.samples = samples

    def distribution(self, scores: Tensor) -> AbstractSampled:
        if isinstance(self.over, Bits):
            return Bernoulli(self.over.problem(scores))
        _checks.dense_floats("scores", scores)
        _checks.dimension("scores", scores.shape, -1)
        return Categorical(Choice(scores.shape[-1]).problem(scores), self.over, scores)

    def estimate(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor | None,
        chunk: int | None,
    ) -> Expectation:
        if self.training:
            return self.sampled(distribution, loss_fn, context, chunk)
        item = items_of(distribution)
        z = self.deterministic(distribution)
        return estimated(distribution, evaluate(loss_fn, item, z, chunk), 1)

    def deterministic(self, distribution: AbstractSampled) -> Tensor:
        """The outcome of each item in evaluation mode."""
        return distribution.mode()

    @abc.abstractmethod
    def sampled(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor | None,
        chunk: int | None,
    ) -> Expectation:
        """The estimate in training mode."""

    def extra_repr(self) -> str:
        return f"over={self.over}, samples={self.samples}"


def items_of(distribution: AbstractDistribution, samples: int = 1) -> Tensor:
    """Each item of the batch, so many times: (samples · B,), all items one after the other."""
    scores = distribution.problem.scores
    return torch.arange(len(scores), device=scores.device).repeat(samples)


def mean_of(values: Tensor, samples: int) -> Tensor:
    """The mean (B) of values (samples · B,)."""
    return values.reshape(samples, -1).mean(0)


def estimated(distribution: AbstractDistribution, value: Tensor, calls: int) -> Expectation:
    scores = distribution.problem.scores
    counts = torch.full((len(scores),), calls, device=scores.device)
    return Expectation(distribution, value, counts, torch.zeros_like(counts, dtype=torch.bool))
