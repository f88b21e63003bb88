"""The score-function estimator, also called REINFORCE."""

from __future__ import annotations

from torch import Tensor

from ... import _checks
from ...mappings import AbstractMapping
from ...structures._bits import Bits
from .._distributions import AbstractSampled
from .._expectation import Expectation, LossFn, evaluate
from ._base import AbstractSampler, estimated, items_of, mean_of
from ._baselines import AbstractBaseline


class ScoreFunction(AbstractSampler):
    """An unbiased estimate from samples: ∇E[ℓ] = E[∇ℓ(z) + (ℓ(z) − b) ∇log p(z)].

    The value is the mean loss of the samples, its gradient that of the formula.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, or `Bits(d)`.
        baseline: b: `MovingAverage()`, `SelfCritic()`, `Learned(network)`, or None for zero. It
            gets no gradient from the model's loss.
        samples: how many for each item.

    >>> from fenchel.latent import estimators, marginalize
    >>> estimator = ScoreFunction(baseline=estimators.SelfCritic())
    >>> marginalize(torch.zeros(2, 5), lambda item, z: z.float(), estimator).calls
    tensor([2, 2])

    References: williams1992simple.
    """

    def __init__(
        self,
        over: AbstractMapping | Bits | str | None = None,
        baseline: AbstractBaseline | None = None,
        samples: int = 1,
    ) -> None:
        super().__init__(over, samples)
        _checks.baseline(baseline, AbstractBaseline)
        self.baseline = baseline

    def sampled(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor | None,
        chunk: int | None,
    ) -> Expectation:
        item = items_of(distribution, self.samples)
        z = distribution.sample(item)
        losses = evaluate(loss_fn, item, z, chunk)
        signal = losses.detach()
        calls = self.samples
        rest = None
        if self.baseline is not None:
            context = _checks.context(context, distribution.problem)
            b = self.baseline(distribution, loss_fn, context, chunk)
            rest = self.baseline.learn(b, signal.reshape(self.samples, -1))
            signal = (signal.reshape(self.samples, -1) - b.detach()).flatten()
            calls += self.baseline.extra_calls
        log_p = distribution.log_prob(item, z)
        value = mean_of(losses + signal * (log_p - log_p.detach()), self.samples)
        if rest is not None:
            value = value + (rest - rest.detach())
        return estimated(distribution, value, calls)
