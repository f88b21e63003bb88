"""The marginal log-likelihood by importance sampling, a posterior's support counted exactly."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _checks
from ..structures._bits import Bits
from ..structures._budget import Budget
from ..structures._choice import Choice
from ..structures._matching import Matching
from ..structures._perturbed import Perturbed
from ..structures._posterior import Posterior
from ..structures._problem import ExtraScores
from ._checks import check_no_estimator, check_no_inputs
from ._distributions import (
    AbstractDistribution,
    AbstractSampled,
    HasProbabilities,
    Table,
    is_among,
    lengths_of,
)
from ._elementary import Bernoulli
from ._expectation import Loss, LossFn
from ._gibbs import SAMPLED, Gibbs, UniformMatching
from ._marginalize import Estimator, as_estimator
from ._perturb_and_map import PerturbAndMap
from ._supports import from_posterior
from .estimators._base import exclude_padding, repeat_items, softmax_of_choice


class LogLikelihood(NamedTuple):
    """log p(x) of each item, and the two parts of p(x).

    >>> found = log_likelihood(torch.tensor([2.0, 1.5, -1.0, 0.0]), lambda item, z: -z.float())
    >>> found.support
    tensor(-1.0730)
    >>> bool(found.value.exp().isclose(found.support.exp() + found.complement.exp()))
    True
    """

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
    estimator: Estimator | None = None,
    *,
    extra_scores: ExtraScores | None = None,
    lengths: Any = None,
    mask: Tensor | None = None,
    prior: Tensor | None = None,
    prior_extra_scores: ExtraScores | None = None,
    samples: int = 1000,
    chunk: int | None = None,
) -> LogLikelihood:
    """log p(x) = log Σ_z p(z) p(x | z) of each item, for a prior p(z) and any posterior.

    If the posterior is sparse, the outcomes in its support S are summed exactly. Samples from the
    prior estimate the rest; those in the support are rejected:
    Σ_{z in S} p(z) p(x | z) + (1/M) Σ_m [z_m not in S] p(x | z_m). If the posterior is sampled, as
    that of `ScoreFunction()`, this is importance sampling, (1/M) Σ p(z_m) p(x | z_m) / q(z_m). If
    it is perturb-and-MAP, with an unknown q, its samples are S. All estimates of p(x) are unbiased
    and converge, so on average the logarithm is a lower bound. But a posterior that is sampled and
    excludes outcomes, such as `ScoreFunction(Sparsemax())`, estimates the sum over the others: a
    lower bound, too. For an item without outcomes, all is sampled from the prior. Of NaN
    scores the result is NaN.

    Args:
        scores: the posterior's, or a `Posterior`, as for `marginalize`.
        log_density: log p(x | z) of pairs, called like the `loss_fn` of `marginalize`.
        estimator, extra_scores, lengths, mask: as for `marginalize`.
        prior: scores of the prior, which broadcast to the posterior's; None for zeros. The prior is
            p(z) ∝ exp⟨prior, z⟩; where SparseMAP has a `Budget`, over all bits. For a `Matching`
            with a prior, and for a structure of your own, it is perturb-and-MAP with the noise of
            `Perturbed(structure)`, whatever the estimator; its probabilities are unknown, so all is
            sampled from it, and S is empty.
        prior_extra_scores: extra scores of the prior, if the structure has some.
        samples: M, for each item.
        chunk: the largest number of pairs in one call of `log_density`; None for no limit.
    Returns:
        A LogLikelihood, without gradients.
    Raises:
        TypeError, ValueError: for input of the wrong kind or shape.

    M values of p(x | z) for each item, and one for each outcome in S.

    >>> scores = torch.tensor([[2.0, 1.5, -1.0, 0.0]])
    >>> found = log_likelihood(scores, lambda item, z: -z.float(), samples=10_000)
    >>> found.support, found.value.round(decimals=1)
    (tensor([-1.0730]), tensor([-0.9000]))

    References: correia2020efficient.
    """
    _checks.check_size("samples", samples)
    density = Loss(log_density, chunk, name="log_density")
    if isinstance(scores, Posterior):
        check_no_estimator(estimator)
        check_no_inputs(extra_scores, lengths, mask)
        posterior = from_posterior(scores)
    else:
        posterior = as_estimator(estimator).distribution(scores, extra_scores, lengths, mask)
    base, mass = _prior(posterior, prior, prior_extra_scores), posterior.mass
    item = repeat_items(posterior, samples)
    if isinstance(posterior, PerturbAndMap) and isinstance(base, HasProbabilities):
        posterior = posterior.table(samples)
    if isinstance(posterior, HasProbabilities):
        drawn = posterior.sample(samples).z
        terms = density(item, drawn)
        terms = terms + base.log_prob(item, drawn) - posterior.log_prob(item, drawn)
        empty = (mass == 0)[item].nonzero().squeeze(-1)
        if len(empty):
            drawn = base.sample(samples).z
            terms[empty] = density(item[empty], drawn[empty]).to(terms.dtype)
        support = torch.full_like(terms[: len(posterior.problem.scores)], -torch.inf)
    elif isinstance(posterior, Table) and isinstance(base, HasProbabilities):
        pairs, z, support = _sum_support(posterior, base, density)
        drawn = base.sample(samples).z
        outside = ~_in_support(drawn.reshape(samples, -1, *drawn.shape[1:]), pairs, z, posterior)
        kept = outside.flatten().nonzero().squeeze(-1)
        terms = torch.full_like(item, -torch.inf, dtype=support.dtype)
        if len(kept):
            terms[kept] = density(item[kept], drawn[kept]).to(support.dtype)
    else:
        terms = density(item, base.sample(samples).z)
        support = torch.full_like(terms[: len(posterior.problem.scores)], -torch.inf)
    rest = terms.reshape(samples, -1).logsumexp(0) - math.log(samples)
    parts = (
        x.where(~mass.isnan(), torch.nan) for x in (torch.logaddexp(support, rest), support, rest)
    )
    return LogLikelihood(*map(posterior.problem.restore_batch, parts))


def _prior(
    posterior: AbstractDistribution, scores: Tensor | None, extra_scores: ExtraScores | None
) -> AbstractSampled:
    """The prior of each item."""
    problem = posterior.problem
    structure, lengths = problem.structure, lengths_of(problem)
    if scores is None:
        theta = torch.zeros_like(problem.scores)
    else:
        theta = problem.broadcast_scores("prior", scores)
    if isinstance(structure, Budget) and isinstance(posterior, Table):
        structure = Bits(structure.d)
    theta = theta.reshape(*problem.batch, *structure.shape)
    if lengths is not None:
        lengths = lengths.reshape(*problem.batch, *lengths.shape[1:])
    if isinstance(structure, SAMPLED):
        return Gibbs(structure, theta, extra_scores, lengths)
    base = structure.problem(theta, extra_scores, lengths)
    if isinstance(structure, Matching) and scores is None:
        return UniformMatching(structure, theta, lengths)
    if isinstance(structure, Choice):
        return softmax_of_choice(base)
    if isinstance(structure, Bits):
        return Bernoulli(exclude_padding(base))
    return PerturbAndMap(Perturbed(structure), base)


def _sum_support(
    posterior: Table, base: AbstractSampled, density: Loss
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """The support's items and slots, its outcomes, and log Σ p(z) p(x | z) of each item."""
    item, slot = posterior.support()
    z = posterior.outcome(item, slot)
    table = torch.full_like(posterior.weights, -torch.inf)
    if len(item):
        table[item, slot] = (density(item, z) + base.log_prob(item, z)).to(table.dtype)
    return (item, slot), z, table.logsumexp(-1)


def _in_support(drawn: Tensor, pairs: tuple[Tensor, Tensor], z: Tensor, posterior: Table) -> Tensor:
    """Which of the samples (M, B, …) are in the support of their item, (M, B)."""
    item, slot = pairs
    if drawn.ndim == 2:
        known = torch.zeros_like(posterior.problem.scores, dtype=torch.bool)
        known[item, z] = True
        return known.gather(1, drawn.T).T
    parts = z.flatten(1)
    sets = parts.new_zeros(*posterior.weights.shape, parts.shape[1])
    sets[item, slot] = parts
    return is_among(drawn.flatten(2), sets, posterior.weights != 0)
