"""Relaxed, differentiable samples: Gumbel-softmax and straight-through."""

from __future__ import annotations

from torch import Tensor

from ... import _checks
from ...structures._bits import Bits
from ...structures._choice import Choice
from .._distributions import AbstractSampled, HasRelaxation
from .._expectation import Expectation, Loss
from ._base import AbstractSampler, Over, estimated, mean_over_samples, repeat_items


class GumbelSoftmax(AbstractSampler):
    """A biased, differentiable estimate from relaxed samples in the simplex,
    softmax((log p + Gumbel noise) / temperature).

    `loss_fn` gets them as (N, K); `latent.embed` embeds them. For `Bits(d)` they are (N, d) in the
    cube, sigmoid((θ + logistic noise) / temperature). In evaluation mode they are the vertex of the
    most probable outcome.

    For any other structure they are points (N, *shape) of its polytope: the marginals of
    (θ + Gumbel noise) / temperature, or SparseMAP of these scores where marginals are intractable.
    This relaxes perturb-and-MAP, whose noise is that of `Perturbed(structure, noise="gumbel")`.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, a structure, or a `Perturbed`.
        temperature: > 0; the lower, the closer to vertices. It may be set between steps.
        samples: how many for each item.

    >>> from fenchel.latent import embed, marginalize
    >>> values = torch.tensor([[1.0], [2.0], [4.0]])
    >>> estimator = GumbelSoftmax(temperature=0.5).eval()
    >>> scores = torch.tensor([[0.0, 3.0, 1.0]])
    >>> marginalize(scores, lambda item, z: embed(z, values)[:, 0], estimator).value
    tensor([2.])

    References: jang2017categorical, maddison2017concrete, corro2019differentiable,
    paulus2020gradient.
    """

    exact = (Choice, Bits)
    noise = "gumbel"
    hard = False

    def __init__(
        self,
        over: Over | None = None,
        temperature: float = 1.0,
        samples: int = 1,
    ) -> None:
        super().__init__(over, samples)
        _checks.check_number("temperature", temperature, above=0)
        self.temperature = temperature

    def estimate_by_samples(self, distribution: HasRelaxation, loss: Loss) -> Expectation:
        _checks.check_number("temperature", self.temperature, above=0)
        item = repeat_items(distribution, self.samples)
        z = distribution.relaxed_sample(self.samples, self.temperature, self.hard)
        losses = loss(item, z)
        return estimated(distribution, mean_over_samples(losses, self.samples), self.samples)

    def most_probable(self, distribution: AbstractSampled) -> Tensor:
        return distribution.indicator(distribution.mode())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"


class StraightThrough(GumbelSoftmax):
    """`GumbelSoftmax` rounded to vertices, with the gradient of the relaxed samples.

    The vertex of a structure is the best one for the perturbed scores. `Spigot` is another gradient
    through the best one.

    Args:
        over, temperature, samples: as for `GumbelSoftmax`.

    >>> from fenchel.latent import marginalize
    >>> scores = torch.zeros(1, 3, requires_grad=True)
    >>> outcome = marginalize(scores, lambda item, z: z[:, 0], StraightThrough())
    >>> outcome.calls, outcome.exact
    (tensor([1]), tensor([False]))

    References: bengio2013estimating, jang2017categorical.
    """

    hard = True
