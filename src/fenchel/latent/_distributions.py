"""What a distribution of a latent variable is: a sparse table of outcomes, or a sampler."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..structures._base import AbstractStructure
from ..structures._problem import Problem
from ._divergence import divergence

TRIES = 32
"""How many samples are drawn at once to find one outside of a few outcomes."""


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p of rows (B, W); where p is zero there is no gradient."""
    return -(p * torch.where(p == 0, 1.0, p).log()).sum(-1)


def lengths_of(problem: Problem) -> Tensor | None:
    """The lengths of B items as users give them: (B), or (B, k) of k sides."""
    lengths = problem.lengths
    return lengths.squeeze(1) if lengths is not None and lengths.shape[1] == 1 else lengths


class AbstractDistribution(abc.ABC):
    """A distribution over the outcomes z of each of B items.

    A categorical latent is a `Choice`: its problem has scores (B, K), and its marginals are its
    probabilities.
    """

    problem: Problem

    @property
    @abc.abstractmethod
    def mass(self) -> Tensor:
        """(B), zero where an item has no outcome, NaN where its scores have no distribution, and
        about one for all others."""

    @property
    @abc.abstractmethod
    def marginals(self) -> Tensor:
        """The expectation of the outcomes' parts, (B, *shape), differentiable."""

    @property
    @abc.abstractmethod
    def entropy(self) -> Tensor:
        """(B), differentiable."""

    def kl(self, prior: Tensor | None, structure: AbstractStructure | None) -> Tensor:
        """Σ p(z) log(p(z) / prior(z)), (B), for prior(z) ∝ exp⟨prior, z⟩ over a structure.

        Args:
            prior: (B, *shape); None for the uniform prior.
            structure: None for that of the distribution.
        """
        return divergence(self.problem, self.marginals, self.entropy, prior, structure)


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
    def mass(self) -> Tensor:
        unknown = self.marginals.detach().isnan().flatten(1).any(1)
        return torch.where(unknown, torch.nan, self.weights.detach().sum(1))

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


class Drawn(NamedTuple):
    """N samples, the first of each of the B items, then the second of each, and so on."""

    z: Tensor
    """(N, …): the outcomes"""
    point: Tensor
    """(N, …): what `log_prob` takes, which determines the outcome and is often the same"""


class AbstractSampled(AbstractDistribution):
    """A distribution that can be sampled."""

    @abc.abstractmethod
    def sample(self, samples: int) -> Drawn:
        """So many outcomes of each item."""

    @abc.abstractmethod
    def log_prob(self, item: Tensor, point: Tensor) -> Tensor:
        """log p of points (N, …) of items (N,), but for a constant; differentiable in the
        scores."""

    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most probable outcome of each item, (B, …)."""

    def indicator(self, z: Tensor) -> Tensor:
        """The indicators (N, *shape) of outcomes (N, …)."""
        return z


class HasRelaxation(AbstractSampled):
    """A distribution with samples that have a derivative."""

    @abc.abstractmethod
    def relaxed_sample(self, samples: int, temperature: float, hard: bool) -> Tensor:
        """Reparametrized samples (N, *shape) of each item inside the polytope. If `hard`, they are
        rounded to indicators, with the gradient of the samples before rounding."""


class Rest(NamedTuple):
    """One outcome of each item besides a few that are known."""

    z: Tensor
    """(B, …)"""
    weight: Tensor
    """(B): the sum of p(z) f(z) over the rest is the expectation of weight · f(z)"""
    is_empty: Tensor
    """(B): whether there is nothing besides the known ones"""


class HasProbabilities(AbstractSampled):
    """A distribution whose points are the outcomes: `log_prob` is the logarithm of p(z)."""

    @abc.abstractmethod
    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable outcomes (B, k, …), or all, and which of these exist, (B, k)."""

    def sample_rest(self, top: Tensor, exists: Tensor) -> Rest:
        """An outcome that is not among those of `k_best`, where one is found.

        The first of T samples that is outside has the distribution of the rest. There is one with
        the probability 1 − (1 − m)ᵀ, if m is the probability of the rest.
        """
        size = len(top)
        item = torch.arange(size, device=top.device).repeat_interleave(top.shape[1])
        log_p = self.log_prob(item, top.flatten(0, 1)).detach().reshape(exists.shape)
        mass = 1 - torch.where(exists, log_p, -torch.inf).double().exp().sum(1).clamp(max=1)
        z = self.sample(TRIES).z
        z = z.reshape(TRIES, size, *z.shape[1:])
        outside = ~is_among(z.flatten(2), top.flatten(2), exists)
        first = outside.int().argmax(0)
        weight = mass / -torch.expm1(TRIES * torch.log1p(-mass))
        weight = torch.where(outside.any(0), weight, 0.0).to(log_p.dtype)
        is_empty = exists.sum(1) >= self.num_outcomes()
        return Rest(z[first, torch.arange(size, device=z.device)], weight, is_empty)

    @torch.no_grad()
    def num_outcomes(self) -> Tensor:
        """How many outcomes each item has, (B) in float64: the partition function of scores zero,
        without the parts that are excluded."""
        problem, structure = self.problem, self.problem.structure
        scores, extra = (
            None if x is None else torch.where(x.isinf(), -torch.inf, 0.0).double()
            for x in (problem.scores, problem.extra_scores)
        )
        arguments: Any = structure.arguments(scores, extra, problem.lengths)  # type: ignore[arg-type]
        return structure.log_partition(*arguments).exp().round()


def score_weight(log_p: Tensor) -> Tensor:
    """p over its own value: 1, with the derivatives ∇p/p, ∇²p/p, … of every order. A sample's loss
    times it has the derivatives of the expectation, on average."""
    return (log_p - log_p.detach()).nan_to_num().exp()


def is_among(drawn: Tensor, known: Tensor, exists: Tensor) -> Tensor:
    """Which of the zeros and ones (M, B, D) are among the known ones (B, W, D) of their item that
    exist, (B, W): (M, B)."""
    # Two vectors of ±1 are equal if and only if their inner product is their length.
    signs = torch.where(exists.unsqueeze(-1), 2 * known - 1, 0)
    agreed = torch.einsum("mbd,bwd->mbw", 2 * drawn - 1, signs)
    return (agreed == known.shape[-1]).any(-1)


def straight_through(soft: Tensor, rounded: Tensor) -> Tensor:
    """The values of `rounded` with the gradient of `soft`."""
    return rounded + (soft - soft.detach())
