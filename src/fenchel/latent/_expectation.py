"""The value of an expectation, and how a user's function is called for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from .. import _checks
from ..structures._base import AbstractStructure
from ..structures._inference import log_partition
from ._distributions import AbstractDistribution

LossFn = Callable[[Tensor, Tensor], Tensor]
"""From items (N,) and outcomes (N, …) to a value for each pair, (N,)."""


class Expectation:
    """Σ_z p(z) ℓ(z) of each item, or its estimate, and the terms that an ELBO needs.

    What it holds has the batch dimensions of the scores.
    """

    def __init__(
        self, distribution: AbstractDistribution, value: Tensor, calls: Tensor, exact: Tensor
    ) -> None:
        self._distribution = distribution
        self._parts = value, calls, exact

    def _given(self, values: Tensor) -> Tensor:
        return self._distribution.problem.unbatched(values)

    @cached_property
    def value(self) -> Tensor:
        """(...): differentiable in the scores and in all that the function computed with."""
        value = self._parts[0]
        return value.reshape((*self._distribution.problem.batch, *value.shape[1:]))

    @cached_property
    def calls(self) -> Tensor:
        """(...) in int64: for how many outcomes the function was called."""
        return self._given(self._parts[1])

    @cached_property
    def exact(self) -> Tensor:
        """(...): whether it is the expectation itself: no outcome is missing, none was sampled."""
        return self._given(self._parts[2])

    @cached_property
    def marginals(self) -> Tensor:
        """(..., *shape), differentiable: the probabilities of categories, or of each part of a
        structure."""
        return self._given(self._distribution.marginals)

    @cached_property
    def entropy(self) -> Tensor:
        """(...), differentiable: −Σ_z p(z) log p(z), of the distribution itself where the value is
        an estimate."""
        return self._given(self._distribution.entropy)

    def kl(self, prior: Tensor | None = None, structure: AbstractStructure | None = None) -> Tensor:
        """KL(p ‖ prior) = Σ_z p(z) log(p(z) / prior(z)), with prior(z) ∝ exp⟨prior, z⟩.

        Args:
            prior: the scores of the prior, which broadcast to those of the posterior; None for the
                uniform one.
            structure: what the prior is over, where it is a larger set than the posterior's, as
                `Bits` for a `Budget`.
        Returns:
            (...), differentiable in the scores and in the prior's.
        Raises:
            NotImplementedError: where the log-partition of the prior is intractable.

        >>> import fenchel
        >>> scores = torch.tensor([2.0, 0.0, 0.0, 0.0])
        >>> fenchel.latent.marginalize(scores, lambda item, z: z.float()).kl()  # log 4
        tensor(1.3863)
        """
        own = self._distribution.problem
        if prior is None:
            theta = torch.zeros_like(own.scores[:1])
        else:
            shape = torch.Size((*own.batch, *own.structure.shape))
            theta = _checks.broadcasts("prior", prior, shape).reshape(own.scores.shape)
            theta = theta.to(own.scores.dtype)
        over = own.structure if structure is None else structure
        _checks.same_shape("structure", over, own.structure)
        lengths = own.lengths
        if lengths is not None:
            theta = theta.expand_as(own.scores)
            lengths = lengths.squeeze(1) if lengths.shape[1] == 1 else lengths
        log_z = log_partition(over, theta, lengths=lengths)
        u = self._distribution.marginals
        score = torch.where(u == 0, 0.0, u * theta).flatten(1).sum(1)
        return self._given(log_z - score - self._distribution.entropy)


def evaluate(
    function: LossFn, item: Tensor, z: Tensor, chunk: int | None, name: str = "loss_fn"
) -> Tensor:
    """The function's values for pairs, (N,), in one call or in several of at most `chunk`."""
    if chunk is None or len(item) <= chunk:
        values = function(item, z)
        _checks.losses(values, len(item), name)
        return values
    pieces = []
    for items, outcomes in zip(item.split(chunk), z.split(chunk), strict=True):
        pieces.append(function(items, outcomes))
        _checks.losses(pieces[-1], len(items), name)
    return torch.cat(pieces)


def embed(z: Tensor, weight: Tensor) -> Tensor:
    """The rows of an embedding for categories, or their mixtures for relaxed ones.

    With it one decoder serves the estimators that give indices and those that give points of the
    simplex.

    Args:
        z: indices (...), or weights (..., K).
        weight: (K, H), as that of `torch.nn.Embedding`.
    Returns:
        (..., H).

    >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> embed(torch.tensor([1]), weight), embed(torch.tensor([[0.5, 0.5]]), weight)
    (tensor([[0., 2.]]), tensor([[0.5000, 1.0000]]))
    """
    return z @ weight if z.is_floating_point() else weight[z]
