"""The distributions of a latent variable: sparse tables of outcomes, and samplers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from ..mappings import AbstractMapping
from ..mappings._softmax import Softmax
from ..structures._problem import Problem


def safe_log(p: Tensor) -> Tensor:
    """log p; where p is zero it is −inf and has no gradient."""
    return torch.where(p == 0, -torch.inf, torch.where(p == 0, 1.0, p).log())


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p of rows (B, W); where p is zero there is no gradient."""
    return -(p * torch.where(p == 0, 1.0, p).log()).sum(-1)


class AbstractDistribution(abc.ABC):
    """A distribution over the outcomes z of each of B items.

    A categorical latent is a `Choice`: its problem has scores (B, K), and its marginals are its
    probabilities.
    """

    problem: Problem

    @property
    @abc.abstractmethod
    def marginals(self) -> Tensor:
        """The expectation of the outcomes' parts, (B, *shape), differentiable."""

    @property
    @abc.abstractmethod
    def entropy(self) -> Tensor:
        """(B), differentiable."""


@dataclass(frozen=True, eq=False)
class Table(AbstractDistribution):
    """A distribution with few outcomes, in W slots for each item.

    Args:
        problem: the scores.
        weights: (B, W), the probability of the outcome in each slot, zero where there is none.
        outcome: from items (N,) and slots (N,) to the outcomes there.
        mean: computes the marginals.
        exact: (B), whether no outcome is missing.
    """

    problem: Problem
    weights: Tensor
    outcome: Callable[[Tensor, Tensor], Tensor]
    mean: Callable[[], Tensor]
    exact: Tensor

    @property
    def marginals(self) -> Tensor:
        return self.mean()

    @property
    def entropy(self) -> Tensor:
        return entropy(self.weights)

    def support(self) -> tuple[Tensor, Tensor]:
        """The items (N,) and slots (N,) of nonzero probability, item by item."""
        item, slot = (self.weights != 0).nonzero(as_tuple=True)
        return item, slot


class AbstractSampled(AbstractDistribution):
    """A distribution that can be sampled."""

    @abc.abstractmethod
    def sample(self, item: Tensor) -> Tensor:
        """An outcome for each of the items (N,)."""

    @abc.abstractmethod
    def log_prob(self, item: Tensor, z: Tensor) -> Tensor:
        """log p(z), (N,), differentiable in the scores."""

    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most probable outcome of each item, (B, …)."""

    @abc.abstractmethod
    def relaxed_sample(self, item: Tensor, temperature: float, hard: bool) -> Tensor:
        """Reparametrized samples (N, *shape) inside the simplex or the cube. If `hard`, they are
        rounded to indicators, with the gradient of the samples before rounding."""

    @abc.abstractmethod
    def indicator(self, z: Tensor) -> Tensor:
        """The indicators (N, *shape) of outcomes (N, …)."""


def straight_through(soft: Tensor, rounded: Tensor) -> Tensor:
    """The values of `rounded` with the gradient of `soft`."""
    return rounded + (soft - soft.detach())


class Categorical(AbstractSampled):
    """One of K outcomes, by its index, with the probabilities that a mapping gives.

    Args:
        problem: of a `Choice`, with scores (B, K).
        mapping: what gives the probabilities.
        scores: its scores as the user gave them, (..., K).
    """

    def __init__(self, problem: Problem, mapping: AbstractMapping, scores: Tensor) -> None:
        self.problem = problem
        if isinstance(mapping, Softmax):
            self.log_probs = (scores / mapping.gamma).log_softmax(-1).reshape(problem.scores.shape)
            self.probabilities = self.log_probs.exp()
        else:
            self.probabilities = mapping(scores).reshape(problem.scores.shape)
            self.log_probs = safe_log(self.probabilities)

    @property
    def marginals(self) -> Tensor:
        return self.probabilities

    @property
    def entropy(self) -> Tensor:
        return entropy(self.probabilities)

    def sample(self, item: Tensor) -> Tensor:
        p = self.probabilities.detach()[item]
        return (p / torch.empty_like(p).exponential_()).argmax(-1)

    def log_prob(self, item: Tensor, z: Tensor) -> Tensor:
        return self.log_probs[item, z]

    def mode(self) -> Tensor:
        return self.probabilities.argmax(-1)

    def relaxed_sample(self, item: Tensor, temperature: float, hard: bool) -> Tensor:
        logits = self.log_probs[item]
        soft = ((logits - torch.empty_like(logits).exponential_().log()) / temperature).softmax(-1)
        return straight_through(soft, self.indicator(soft.argmax(-1))) if hard else soft

    def indicator(self, z: Tensor) -> Tensor:
        return one_hot(z, self.probabilities.shape[-1]).to(self.probabilities.dtype)


class Bernoulli(AbstractSampled):
    """Independent bits, p(zᵢ = 1) = 1/(1 + exp(−θᵢ)); outcomes are zeros and ones, (N, D)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def marginals(self) -> Tensor:
        return self.problem.scores.sigmoid()

    @property
    def entropy(self) -> Tensor:
        certain = self.problem.scores.isinf()
        scores = torch.where(certain, 0.0, self.problem.scores)
        p = scores.sigmoid()
        bits = -(p * logsigmoid(scores) + (1 - p) * logsigmoid(-scores))
        return torch.where(certain, 0.0, bits).sum(-1)

    def sample(self, item: Tensor) -> Tensor:
        return torch.bernoulli(self.marginals.detach()[item])

    def log_prob(self, item: Tensor, z: Tensor) -> Tensor:
        scores = self.problem.scores[item]
        return torch.where(z > 0, logsigmoid(scores), logsigmoid(-scores)).sum(-1)

    def mode(self) -> Tensor:
        return (self.problem.scores > 0).to(self.problem.scores.dtype)

    def relaxed_sample(self, item: Tensor, temperature: float, hard: bool) -> Tensor:
        scores = self.problem.scores[item]
        noise = torch.rand_like(scores).clamp(min=torch.finfo(scores.dtype).tiny)
        soft = ((scores + noise.log() - (-noise).log1p()) / temperature).sigmoid()
        return straight_through(soft, (soft > 0.5).to(soft.dtype)) if hard else soft

    def indicator(self, z: Tensor) -> Tensor:
        return z
