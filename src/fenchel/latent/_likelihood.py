"""The marginal log-likelihood by importance sampling, a posterior's support counted exactly."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks
from ..mappings._softmax import Softmax
from ..structures._bits import Bits
from ..structures._budget import Budget
from ..structures._choice import Choice
from ..structures._posterior import Posterior
from ..structures._problem import Problem
from ._distributions import AbstractSampled, Bernoulli, Categorical, Table
from ._expectation import LossFn, evaluate
from ._marginalize import Mapping, estimator_of
from ._supports import by_posterior
from .estimators._base import items_of


class LogLikelihood(NamedTuple):
    """log p(x) of each item, and the two parts of p(x)."""

    value: Tensor
    """(...): log(exp(support) + exp(complement))"""
    support: Tensor
    """(...): log Σ p(z) p(x | z) over the support, exact; −inf where all was sampled"""
    complement: Tensor
    """(...): the logarithm of the estimate of the rest"""


@torch.no_grad()
def log_likelihood(
    scores: Tensor | Posterior,
    log_density: LossFn,
    mapping: Mapping | None = None,
    *,
    prior: Tensor | None = None,
    samples: int = 1000,
    chunk: int | None = None,
) -> LogLikelihood:
    """log p(x) = log Σ_z p(z) p(x | z) of each item, for a prior p(z) and any posterior.

    Where the posterior is sparse, the outcomes in its support are summed exactly, and those outside
    estimated by samples from the prior, among which the ones in the support are rejected:
    Σ_{z in S} p(z) p(x | z) + (1/M) Σ_m [z_m not in S] p(x | z_m). Where it is one to sample from,
    as that of `ScoreFunction()`, this is importance sampling, (1/M) Σ p(z_m) p(x | z_m) / q(z_m).
    Both are unbiased for p(x), so that the logarithm is on average a lower bound, and converge.

    Args:
        scores: the posterior's, or a `Posterior`, over categories or bits, as for `marginalize`.
        log_density: log p(x | z) of pairs, called like the `loss_fn` of `marginalize`.
        mapping: as for `marginalize`.
        prior: scores of the prior, softmax for categories and independent bits for `Bits` and
            `Budget`, which broadcast to the posterior's; None for the uniform one.
        samples: M, for each item.
        chunk: the most pairs in one call of `log_density`; None for all in one.
    Returns:
        A LogLikelihood, without gradients.
    Raises:
        TypeError, ValueError: for input of the wrong kind or shape, or another structure.

    M values of p(x | z) for each item, and one for each outcome in the support.

    >>> scores = torch.tensor([[2.0, 1.5, -1.0, 0.0]])
    >>> found = log_likelihood(scores, lambda item, z: -z.float(), samples=10_000)
    >>> found.support, found.value.round(decimals=1)
    (tensor([-1.0730]), tensor([-0.9000]))

    References: correia2020efficient.
    """
    _checks.size("samples", samples)
    if chunk is not None:
        _checks.size("chunk", chunk)
    if isinstance(scores, Posterior):
        _checks.posterior_alone(mapping)
        posterior = by_posterior(scores)
    else:
        posterior = estimator_of(mapping).distribution(scores)
    base = _prior(posterior.problem, prior)
    item = items_of(posterior, samples)
    if isinstance(posterior, AbstractSampled):
        drawn = posterior.sample(item)
        density = evaluate(log_density, item, drawn, chunk, "log_density")
        density = density + base.log_prob(item, drawn) - posterior.log_prob(item, drawn)
        support = torch.full_like(density[: len(posterior.problem.scores)], -torch.inf)
    else:
        live, z, support = _support(posterior, base, log_density, chunk)
        drawn = base.sample(item)
        outside = ~_inside(drawn.reshape(samples, -1, *drawn.shape[1:]), live, z, posterior)
        kept = outside.flatten().nonzero().squeeze(-1)
        density = torch.full_like(item, -torch.inf, dtype=support.dtype)
        if len(kept):
            values = evaluate(log_density, item[kept], drawn[kept], chunk, "log_density")
            density[kept] = values.to(support.dtype)
    rest = density.reshape(samples, -1).logsumexp(0) - math.log(samples)
    parts = torch.logaddexp(support, rest), support, rest
    return LogLikelihood(*map(posterior.problem.unbatched, parts))


def _prior(problem: Problem, scores: Tensor | None) -> AbstractSampled:
    """The prior of each item."""
    structure, like = problem.structure, problem.scores
    _checks.sampled_prior(structure, (Choice, Bits, Budget))
    if scores is None:
        theta = torch.zeros_like(like)
    else:
        shape = torch.Size((*problem.batch, *structure.shape))
        theta = _checks.broadcasts("prior", scores, shape).reshape(like.shape).to(like.dtype)
    if isinstance(structure, Choice):
        return Categorical(structure.problem(theta), Softmax(), theta)
    return Bernoulli(Bits(like.shape[1]).problem(theta))


def _support(
    posterior: Table, base: AbstractSampled, log_density: LossFn, chunk: int | None
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """The live pairs, their outcomes, and log Σ p(z) p(x | z) over those of each item."""
    item, slot = posterior.live()
    z = posterior.outcome(item, slot)
    table = torch.full_like(posterior.weights, -torch.inf)
    if len(item):
        values = evaluate(log_density, item, z, chunk, "log_density")
        table[item, slot] = (values + base.log_prob(item, z)).to(table.dtype)
    return (item, slot), z, table.logsumexp(-1)


def _inside(drawn: Tensor, live: tuple[Tensor, Tensor], z: Tensor, posterior: Table) -> Tensor:
    """Which of the samples (M, B, …) are in the support of their item, (M, B)."""
    item, slot = live
    if drawn.ndim == 2:
        known = torch.zeros_like(posterior.problem.scores, dtype=torch.bool)
        known[item, z] = True
        return known.gather(1, drawn.T).T
    # Two configurations of ±1 are equal where their product is their length.
    sets = z.new_zeros(*posterior.weights.shape, z.shape[-1])
    sets[item, slot] = 2 * z - 1
    agreed = torch.einsum("mbd,bwd->mbw", 2 * drawn - 1, sets)
    return (agreed == z.shape[-1]).any(-1)
