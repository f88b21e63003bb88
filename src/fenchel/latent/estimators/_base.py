"""What every estimator is, and what those that sample share."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ... import _checks
from ...mappings import AbstractMapping, get
from ...mappings._softmax import Softmax
from ...nn import Mapping
from ...structures._base import AbstractStructure
from ...structures._bits import Bits
from ...structures._choice import Choice
from ...structures._factor_graph import FactorGraph
from ...structures._perturbed import Perturbed
from ...structures._problem import ExtraScores, Problem
from ...structures._vector import mask_rows
from .._checks import check_distribution, check_no_structure, check_not_graph
from .._distributions import AbstractDistribution, AbstractSampled, Table
from .._elementary import Bernoulli, Categorical
from .._expectation import Expectation, Loss, LossFn
from .._gibbs import SAMPLED, Gibbs
from .._perturb_and_map import PerturbAndMap

Over = AbstractMapping | AbstractStructure | Perturbed | str
"""What turns scores into a distribution."""


class AbstractEstimator(nn.Module, abc.ABC):
    """From scores and a function of outcomes to an expectation.

    It is a module, since some keep an average or learn a baseline: `train()` and `eval()` set the
    mode, and `parameters()` go to the optimizer.

    >>> from fenchel.latent import estimators
    >>> estimator = estimators.Exact("softmax")
    >>> isinstance(estimator, AbstractEstimator)
    True
    >>> estimator(torch.zeros(3), lambda item, z: z.float()).value
    tensor(1.)
    """

    @abc.abstractmethod
    def distribution(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Table | AbstractSampled:
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
        *,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Expectation:
        """As `latent.marginalize`, which calls it."""
        distribution = self.distribution(scores, extra_scores, lengths, mask)
        return self.estimate(distribution, Loss(loss_fn, chunk, context))


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
        over: what turns scores into a distribution: a mapping onto the simplex or its name; a
            structure, for p(z) ∝ exp⟨θ, z⟩; or a `Perturbed`, for perturb-and-MAP. A structure of
            which there are no exact samples, such as `Matching` or `Custom`, is `Perturbed`, too.
        samples: how many for each item; their mean is taken.
    """

    exact: ClassVar[tuple[type, ...]] = (Choice, Bits, *SAMPLED)
    """The structures whose own distribution is sampled."""
    noise: ClassVar[str] = "gaussian"
    """That of the others."""

    def __init__(self, over: Over | None = None, samples: int = 1) -> None:
        over = Softmax() if over is None else self.resolve(over)
        check_distribution(over, (AbstractStructure, Perturbed))
        check_not_graph(over.structure if isinstance(over, Perturbed) else over, FactorGraph)
        if isinstance(over, AbstractStructure) and not isinstance(over, self.exact):
            over = Perturbed(over, noise=self.noise)
        _checks.check_size("samples", samples)
        super().__init__(over)
        self.samples = samples

    def distribution(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> AbstractSampled:
        over, given = self.over, (scores, extra_scores, lengths, mask)
        if isinstance(over, Perturbed):
            return PerturbAndMap(over, over.structure.problem(*given))
        if isinstance(over, SAMPLED):
            return Gibbs(over, *given)
        if isinstance(over, Bits):
            return Bernoulli(exclude_padding(over.problem(*given)))
        if isinstance(over, Choice):
            return softmax_of_choice(over.problem(*given))
        check_no_structure(*given[1:], over)
        _checks.check_float_tensor("scores", scores)
        _checks.check_dim("scores", scores.shape, -1)
        return Categorical(Choice(scores.shape[-1]).problem(scores), over, scores)

    def estimate(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        if self.training:
            return self.estimate_by_samples(distribution, loss)
        losses = loss(repeat_items(distribution), self.most_probable(distribution))
        return estimated(distribution, losses, 1)

    def most_probable(self, distribution: AbstractSampled) -> Tensor:
        """The outcome of each item in evaluation mode."""
        return distribution.mode()

    @abc.abstractmethod
    def estimate_by_samples(self, distribution: Any, loss: Loss) -> Expectation:
        """The estimate in training mode."""

    def extra_repr(self) -> str:
        return f"over={self.over}, samples={self.samples}"


def exclude_padding(problem: Problem) -> Problem:
    """The problem with the score −inf behind the end of each instance."""
    if problem.lengths is None:
        return problem
    inside = problem.structure.length_mask(problem.lengths)
    return replace(problem, scores=torch.where(inside, problem.scores, -torch.inf))


def softmax_of_choice(problem: Problem) -> Categorical:
    """The probabilities of a `Choice`; NaN for an item with NaN or +inf."""
    scores = mask_rows(problem.scores, problem.lengths)
    return Categorical(exclude_padding(problem), Softmax(), scores)


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
