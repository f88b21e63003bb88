"""The score-function estimator, also called REINFORCE."""

from __future__ import annotations

from ... import _checks
from .._checks import check_baseline, check_context
from .._distributions import AbstractSampled, score_weight
from .._expectation import Expectation, Loss
from ._base import AbstractSampler, Over, estimated, mean_over_samples, repeat_items
from ._baselines import AbstractBaseline


class ScoreFunction(AbstractSampler):
    """An unbiased estimate from samples: ∇E[ℓ] = E[∇ℓ(z) + (ℓ(z) − b) ∇log p(z)].

    The value is the mean loss of the samples, its gradient that of the formula. Second derivatives
    are unbiased, too.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, a structure, or a `Perturbed`. For
            perturb-and-MAP, p is the density of the perturbed scores.
        baseline: b: `MovingAverage()`, `SelfCritic()`, `Learned(network)`, for two samples or more
            `LeaveOneOut()`, or None for zero. The model's loss gives it no gradient.
        samples: how many for each item.

    >>> from fenchel.latent import estimators, marginalize
    >>> estimator = ScoreFunction(baseline=estimators.SelfCritic())
    >>> marginalize(torch.zeros(2, 5), lambda item, z: z.float(), estimator).calls
    tensor([2, 2])

    References: williams1992simple.
    """

    def __init__(
        self,
        over: Over | None = None,
        baseline: AbstractBaseline | None = None,
        samples: int = 1,
    ) -> None:
        super().__init__(over, samples)
        check_baseline(baseline, AbstractBaseline)
        if baseline is not None:
            _checks.check_size("samples", samples, minimum=baseline.min_samples)
        self.baseline = baseline

    def estimate_by_samples(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        item = repeat_items(distribution, self.samples)
        drawn = distribution.sample(self.samples)
        losses = loss(item, drawn.z)
        weight = score_weight(distribution.log_prob(item, drawn.point)).to(losses.dtype)
        terms = losses * weight
        calls = self.samples
        baseline_loss = None
        if self.baseline is not None:
            context = check_context(loss.context, distribution.problem)
            b = self.baseline(distribution, loss, context)
            each = losses.detach().reshape(self.samples, -1)
            baseline_loss = self.baseline.learn(b, each)
            subtracted = self.baseline.of_samples(b.detach(), each).to(losses.dtype).flatten()
            terms = terms + subtracted * (1 - weight)
            calls += self.baseline.extra_calls
        value = mean_over_samples(terms, self.samples)
        if baseline_loss is not None:
            value = value + (baseline_loss - baseline_loss.detach()).to(value.dtype)
        return estimated(distribution, value, calls)
