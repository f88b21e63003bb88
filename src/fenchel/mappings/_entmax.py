"""α-entmax: the family from heavy tails (α < 1) over softmax (1) and sparsemax (2) to ever sparser
mappings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from .._transforms import is_recorded
from ..ops import entmax as ops
from ..ops.entmax.reference import expm1_over, expm2_over, support_logs
from ._base import AbstractMapping
from ._eager import bound_class_loss, bound_solver
from ._protocols import HasParameter, HasThreshold
from ._tsallis import AbstractTsallis


def tsallis(y: Tensor, alpha: float | Tensor) -> Tensor:
    """Σ (y^α − y) / (α(α−1)) of rows (..., d); Σ y log y at α = 1, and exact in between."""
    # y^α − y = y expm1((α−1) log y), which tends to (α−1) y log y.
    _, a = support_logs(y)
    return -((y * a * expm1_over((1.0 - alpha) * a)).sum(-1, keepdim=True) / alpha).squeeze(-1)


@final
@dataclass(frozen=True, eq=False)
class Entmax(AbstractTsallis, HasParameter, HasThreshold):
    """Ω(y) = Σ (y^α − y) / (α(α−1)), the negative Tsallis entropy; Σ y log y at α = 1.

    The solution is y = [(α−1)θ − τ]₊^(1/(α−1)) with τ such that it sums to one.

    Args:
        alpha: α > 0; larger is sparser, and below 1 tails are heavier than softmax's. A tensor
            holds one per row (it broadcasts against the scores, with size 1 along `dim`) and
            receives a gradient.
        gamma: the strength of the regularizer.

    >>> scores = torch.tensor([1.1, 0.93, 0.37, -0.4])
    >>> Entmax(1.5)(scores)
    tensor([0.4983, 0.3855, 0.1162, 0.0000])
    >>> Entmax(1.5).loss(scores, torch.tensor(0))
    tensor(0.3420)
    """

    name: ClassVar[str] = "entmax"
    parameter: ClassVar[str] = "alpha"
    _solver = bound_solver(ops.KERNELS, parameter, above=0.0)
    _class_loss = bound_class_loss(ops.LOSS_KERNELS, parameter)

    alpha: float | Tensor = 1.5

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_real("alpha", self.alpha, above=0)

    @property
    def exponent(self) -> float | Tensor:
        return self.alpha

    def omega(self, y: Tensor) -> Tensor:
        return tsallis(y, self.alpha)

    def parameter_omega(self, y: Tensor) -> Tensor:
        _, a = support_logs(y)
        alpha = self._tensor(y)
        t = -(alpha - 1) * a
        entropy = (y * a * expm1_over(t)).sum(-1, keepdim=True)
        # The derivative of (eᵗ − 1)/t is (eᵗ − 1)/t − (eᵗ − 1 − t)/t².
        slope = (y * a * a * (expm1_over(t) - expm2_over(t))).sum(-1, keepdim=True)
        return (entropy / alpha**2 + slope / alpha).squeeze(-1)

    def parameter_jvp(self, y: Tensor) -> Tensor:
        return ops.reference.entmax_parameter_jvp(y, self._tensor(y))

    def parameter_vjp(self, y: Tensor, grad: Tensor) -> Tensor:
        if is_recorded() or y.dtype != grad.dtype:
            return super().parameter_vjp(y, grad)
        return ops.entmax_parameter_vjp(y, grad, self.alpha)

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self.alpha, Tensor) and self.alpha <= 1.0:
            raise NotImplementedError("entmax has no threshold up to alpha = 1: nothing gets zero.")
        peak, at = y.max(-1, keepdim=True)
        epsilon = self.alpha - 1.0
        tau = epsilon * scores.gather(-1, at) - peak**epsilon
        if isinstance(self.alpha, Tensor):  # up to 1 nothing gets zero
            tau = torch.where((epsilon > 0) | tau.isnan(), tau, -torch.inf)
        return tau.squeeze(-1)

    def _tensor(self, y: Tensor) -> Tensor:
        return torch.as_tensor(self.alpha, dtype=y.dtype, device=y.device)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        for alpha in (0.5, 1.0, 1.0001, 1.25, 1.5, 1.75, 2.0, 3.0):
            yield cls(alpha)
        yield cls(1.5, gamma=0.5)


def entmax(
    scores: Tensor, dim: int = -1, *, alpha: float | Tensor = 1.5, gamma: float | Tensor = 1.0
) -> Tensor:
    """α-entmax of `scores` along `dim`: softmax at α = 1, sparsemax at α = 2, exact zeros above 1.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        alpha: α > 0, a number or a tensor with one value per row; a tensor receives a gradient.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Probabilities like `scores`. Linear time in expectation; only the result is saved for
        backward.

    >>> entmax(torch.tensor([2.0, 1.0, 0.1, -1.0]))
    tensor([0.8307, 0.1693, 0.0000, 0.0000])

    References: peters2019sparse, correia2019adaptively.
    """
    return Entmax.of(alpha=alpha, gamma=gamma)(scores, dim)
