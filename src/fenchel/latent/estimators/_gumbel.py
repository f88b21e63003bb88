"""Relaxed samples, which a gradient can pass: Gumbel-softmax and straight-through."""

from __future__ import annotations

from torch import Tensor

from ... import _checks
from ...mappings import AbstractMapping
from ...structures._bits import Bits
from .._distributions import AbstractSampled
from .._expectation import Expectation, LossFn, evaluate
from ._base import AbstractSampler, estimated, items_of, mean_of


class GumbelSoftmax(AbstractSampler):
    """Samples inside the simplex, softmax((log p + Gumbel noise) / temperature): biased, and
    differentiable.

    `loss_fn` gets them as (N, K), and must take them; `latent.embed` helps. For `Bits(d)` they are
    (N, d) in the cube, sigmoid((θ + logistic noise) / temperature). In evaluation mode they are the
    corner of the most probable outcome.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, or `Bits(d)`.
        temperature: > 0; the lower, the closer to corners. It may be set between steps.
        samples: how many for each item.

    >>> from fenchel.latent import embed, marginalize
    >>> values = torch.tensor([[1.0], [2.0], [4.0]])
    >>> estimator = GumbelSoftmax(temperature=0.5).eval()
    >>> scores = torch.tensor([[0.0, 3.0, 1.0]])
    >>> marginalize(scores, lambda item, z: embed(z, values)[:, 0], estimator).value
    tensor([2.])

    References: jang2017categorical, maddison2017concrete.
    """

    hard = False

    def __init__(
        self,
        over: AbstractMapping | Bits | str | None = None,
        temperature: float = 1.0,
        samples: int = 1,
    ) -> None:
        super().__init__(over, samples)
        _checks.number("temperature", temperature, above=0)
        self.temperature = temperature

    def sampled(
        self,
        distribution: AbstractSampled,
        loss_fn: LossFn,
        context: Tensor | None,
        chunk: int | None,
    ) -> Expectation:
        _checks.number("temperature", self.temperature, above=0)
        item = items_of(distribution, self.samples)
        z = distribution.relaxed(item, self.temperature, self.hard)
        losses = evaluate(loss_fn, item, z, chunk)
        return estimated(distribution, mean_of(losses, self.samples), self.samples)

    def deterministic(self, distribution: AbstractSampled) -> Tensor:
        return distribution.indicator(distribution.mode())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"


class StraightThrough(GumbelSoftmax):
    """Samples at the corners with the gradient of relaxed ones: as `GumbelSoftmax`, rounded.

    Args:
        over, temperature, samples: as for `GumbelSoftmax`.

    References: bengio2013estimating, jang2017categorical.
    """

    hard = True
