"""What SparseMAP returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..structures._problem import Problem


@dataclass(frozen=True, eq=False)
class Posterior:
    """A sparse distribution over structures, and its marginals.

    Tensors of K structures are padded to the widest support of the batch: a weight there is zero.
    """

    marginals: Tensor
    """(..., *shape): the u of the paper, differentiable."""
    structures: Tensor
    """(..., K, positions) in int64, the codes of the structures, −1 behind the last one; indicators
    (..., K, *shape) for a structure of your own."""
    weights: Tensor
    """(..., K), differentiable; they sum to one."""
    support_size: Tensor
    """(...): how many structures have a weight."""
    gap: Tensor
    """(...): the duality gap, which bounds ½‖marginals − truth‖²; float64."""
    iterations: Tensor
    """(...): how often the oracle was called."""
    converged: Tensor
    """(...): whether the gap is as small as it was asked to be."""
    _problem: Problem
    _kept: Kept

    @cached_property
    def additional(self) -> Any:
        """The marginals of the additional scores, differentiable, in the form in which these were
        given: how often each is used, on average; None where there are none."""
        if self._problem.additional is None:
            return None
        return self._problem.restored(self._kept.marginals, self._kept.extras)[1]


@dataclass(frozen=True, eq=False)
class Kept:
    """A solution in float64 with one batch dimension, before it is given the user's form."""

    marginals: Tensor
    """(B, *shape)"""
    weights: Tensor
    """(B, K)"""
    codes: Tensor
    """(B, K, ...)"""
    places: Tensor | None
    """(B, K, k): the additional scores of the structures, by their indices or as indicators"""
    extra_shape: tuple[int, ...]

    @cached_property
    def extras(self) -> Tensor | None:
        """The marginals of additional scores, (B, …)."""
        if self.places is None:
            return None
        weights = self.weights.to(self.places.device)
        if self.places.is_floating_point():
            v = torch.einsum("bk,bkn->bn", weights, self.places)
        else:
            size = torch.Size(self.extra_shape).numel()
            places = torch.where(self.places < 0, size, self.places).long()
            spread = weights.unsqueeze(-1).expand_as(places)
            v = weights.new_zeros(len(weights), size + 1)
            v = v.scatter_add(1, places.flatten(1), spread.flatten(1))[:, :size]
        return v.reshape(-1, *self.extra_shape)
