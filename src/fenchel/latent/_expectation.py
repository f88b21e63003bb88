"""The value of an expectation, and how a user's function is called for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .. import _checks
from ..structures._base import AbstractStructure
from ._checks import check_losses
from ._distributions import AbstractDistribution

LossFn = Callable[[Tensor, Tensor], Tensor]
"""From items (N,) and outcomes (N, …) to a value for each pair, (N,)."""


@dataclass(frozen=True, eq=False)
class Loss:
    """A user's function, called for pairs of an item and an outcome.

    Args:
        function: from items (N,) and outcomes (N, …) to values (N,).
        chunk: the largest number of pairs in one call; None for no limit.
        context: (..., F), what a baseline sees of each item; None for the scores.
        name: what messages call the function.
    """

    function: LossFn
    chunk: int | None = None
    context: Tensor | None = None
    name: str = "loss_fn"

    def __post_init__(self) -> None:
        if self.chunk is not None:
            _checks.check_size("chunk", self.chunk)

    def __call__(self, item: Tensor, z: Tensor) -> Tensor:
        """The values (N,) of items (N,) and outcomes (N, …), in chunks. Outcomes that are NaN are
        zero for the function, so that what it computes with has a finite gradient."""
        z = z.nan_to_num() if z.is_floating_point() else z
        if self.chunk is None or len(item) <= self.chunk:
            return self._call(item, z)
        chunks = zip(item.split(self.chunk), z.split(self.chunk), strict=True)
        return torch.cat([self._call(*chunk) for chunk in chunks])

    def _call(self, item: Tensor, z: Tensor) -> Tensor:
        values = self.function(item, z)
        check_losses(values, len(item), self.name)
        return values


class Expectation:
    """Σ_z p(z) ℓ(z) of each item, or its estimate, and the terms that an ELBO needs.

    All attributes have the batch dimensions of the scores.

    >>> from fenchel.latent import marginalize
    >>> found = marginalize(torch.tensor([1.1, 0.93, 0.37, -0.4]), lambda item, z: z.float())
    >>> found.value, found.calls, found.exact  # 0 * 0.585 + 1 * 0.415, of two outcomes
    (tensor(0.4150), tensor(2), tensor(True))
    >>> found.marginals
    tensor([0.5850, 0.4150, 0.0000, 0.0000])
    >>> found.entropy
    tensor(0.6786)
    """

    def __init__(
        self, distribution: AbstractDistribution, value: Tensor, calls: Tensor, exact: Tensor
    ) -> None:
        self._distribution = distribution
        self._value, self._calls, self._exact = value, calls, exact

    def _restore(self, values: Tensor) -> Tensor:
        return self._distribution.problem.restore_batch(values)

    def _complete(self, values: Tensor) -> Tensor:
        """Values (B), zero for an item without outcomes; NaN with the gradient NaN for one without
        a distribution."""
        mass = self._distribution.mass
        scores = self._distribution.problem.scores.flatten(1)
        unknown = torch.where(mass.isnan(), torch.nan, 0.0).to(values.dtype) * scores.sum(1)
        return torch.where(mass.isnan(), unknown, torch.where(mass == 0, 0.0, values))

    @cached_property
    def value(self) -> Tensor:
        """(...): differentiable in the scores and in all that the function computed with."""
        return self._complete(self._value).reshape(self._distribution.problem.batch)

    @cached_property
    def calls(self) -> Tensor:
        """(...) in int64: for how many outcomes the function was called."""
        return self._restore(self._calls)

    @cached_property
    def exact(self) -> Tensor:
        """(...): whether it is the expectation itself: no outcome is missing, none was sampled."""
        return self._restore(self._exact)

    @cached_property
    def marginals(self) -> Tensor:
        """(..., *shape), differentiable: the probabilities of categories, or of each part of a
        structure. Those of perturb-and-MAP are estimates."""
        return self._restore(self._distribution.marginals)

    @cached_property
    def entropy(self) -> Tensor:
        """(...), differentiable: −Σ_z p(z) log p(z). It is exact, even if the value is an
        estimate. Perturb-and-MAP has none: NotImplementedError."""
        return self._restore(self._complete(self._distribution.entropy))

    def kl(self, prior: Tensor | None = None, structure: AbstractStructure | None = None) -> Tensor:
        """KL(p ‖ prior) = Σ_z p(z) log(p(z) / prior(z)), with prior(z) ∝ exp⟨prior, z⟩.

        Args:
            prior: the scores of the prior, which broadcast to those of the posterior; None for the
                uniform one.
            structure: the set that the prior is over, if it is larger than the posterior's: `Bits`
                for a `Budget`, for example. A set of the library that does not contain the
                posterior's is an error.
        Returns:
            (...), differentiable in the scores and in the prior's. If p is perturb-and-MAP, so is
            the prior, with the same noise, and this is the divergence of the perturbed scores: an
            upper bound, with which the ELBO is still a lower bound.
        Raises:
            NotImplementedError: if the log-partition of the prior is intractable.

        >>> import fenchel
        >>> scores = torch.tensor([2.0, 0.0, 0.0, 0.0])
        >>> fenchel.latent.marginalize(scores, lambda item, z: z.float()).kl()  # log 4
        tensor(1.3863)
        """
        distribution = self._distribution
        theta = None if prior is None else distribution.problem.broadcast_scores("prior", prior)
        return self._restore(self._complete(distribution.kl(theta, structure)))


def embed(z: Tensor, weight: Tensor) -> Tensor:
    """The rows of an embedding for categories, or their mixtures for relaxed ones.

    With it one decoder serves the estimators that give indices and those that give points of the
    simplex.

    Args:
        z: indices (...), or weights (..., K), which may be bits.
        weight: (K, H), as that of `torch.nn.Embedding`.
    Returns:
        (..., H).

    >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> embed(torch.tensor([1]), weight), embed(torch.tensor([[0.5, 0.5]]), weight)
    (tensor([[0., 2.]]), tensor([[0.5000, 1.0000]]))
    """
    is_index = not (z.is_floating_point() or z.dtype == torch.bool)
    return weight[z] if is_index else z.to(weight.dtype) @ weight
