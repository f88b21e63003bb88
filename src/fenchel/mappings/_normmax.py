"""normmax: the norm itself as the regularizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import pnormmax as ops
from ._base import AbstractMapping
from ._eager import bound_solver
from ._protocols import HasKernels, HasParameter, HasThreshold


@final
@dataclass(frozen=True, eq=False)
class Normmax(AbstractMapping, HasKernels, HasParameter, HasThreshold):
    """Ω(y) = ‖y‖_α; the solution is y ∝ [θ − τ]₊^(1/(α−1)), with ‖[θ − τ]₊‖_q = 1.

    q = α/(α−1) is the dual exponent. The larger α, the more equal the entries of the support.

    Args:
        alpha: α > 1. A tensor holds one per row (it broadcasts against the scores, with size 1
            along `dim`) and receives a gradient.
        gamma: the strength of the regularizer.

    >>> Normmax(2.0)(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.5392, 0.4225, 0.0383, 0.0000])
    """

    name: ClassVar[str] = "normmax"
    parameter: ClassVar[str] = "alpha"
    _solver = bound_solver(ops.NORMMAX_KERNELS, parameter, above=1.0)

    alpha: float | Tensor = 2.0

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_real("alpha", self.alpha, above=1)

    def solve(self, scores: Tensor) -> Tensor:
        return ops.normmax(scores, self.alpha)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.reference.normmax_jvp(y, v, self.alpha)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.normmax_jvp(y, v, self.alpha)

    def omega(self, y: Tensor) -> Tensor:
        return self._norm(y).squeeze(-1)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        return 1.0

    def parameter_omega(self, y: Tensor) -> Tensor:
        norm = self._norm(y)
        return (norm * self._tilt(y, norm)).squeeze(-1)

    def parameter_jvp(self, y: Tensor) -> Tensor:
        # The gradient of Ω is g = (y/‖y‖)^(α−1); J(−∂g/∂α) is what a change of α moves.
        support = y > 0
        norm = self._norm(y)
        ratio = torch.where(support, y, norm) / norm
        gradient = torch.where(support, ratio ** (self.alpha - 1.0), 0.0)
        slope = gradient * (torch.log(ratio) - (self.alpha - 1.0) * self._tilt(y, norm))
        return self.jvp(y, -slope)

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        peak, at = y.max(-1, keepdim=True)
        return (scores.gather(-1, at) - (peak / self._norm(y)) ** (self.alpha - 1.0)).squeeze(-1)

    def _norm(self, y: Tensor) -> Tensor:
        return ops.reference.norm(y, self.alpha)

    def _tilt(self, y: Tensor, norm: Tensor) -> Tensor:
        """∂ log‖y‖_α / ∂α."""
        support = y > 0
        ratio = torch.where(support, y, norm) / norm
        weights = torch.where(support, ratio**self.alpha, 0.0)
        return (weights * torch.log(ratio)).sum(-1, keepdim=True) / self.alpha

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        for alpha in (1.2, 2.0, 3.0, 50.0):
            yield cls(alpha)
        yield cls(1.5, gamma=0.5)


def normmax(
    scores: Tensor, dim: int = -1, *, alpha: float | Tensor = 2.0, gamma: float | Tensor = 1.0
) -> Tensor:
    """The mapping regularized by the α-norm: sparse, and the more uniform the larger α.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        alpha: α > 1, a number or a tensor with one value per row; a tensor receives a gradient.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Probabilities like `scores`. Linear time in expectation; only the result is saved for
        backward.

    >>> normmax(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.5714, 0.4286, 0.0000, 0.0000])

    References: blondel2020learning.
    """
    return Normmax.of(alpha=alpha, gamma=gamma)(scores, dim)
