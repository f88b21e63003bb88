"""pnormmax (sq-pnorm-max): half a squared p-norm as the regularizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from .. import _checks
from ..ops import pnormmax as ops
from ._base import AbstractMapping
from ._eager import bound_solver
from ._protocols import HasKernels, HasThreshold


@final
@dataclass(frozen=True, eq=False)
class Pnormmax(AbstractMapping, HasKernels, HasThreshold):
    """Ω(y) = ½‖y‖_p²; sparsemax at p = 2.

    The solution is y ∝ u^(q−1), u = [θ − τ]₊, q = p/(p−1), with τ such that Σu^(q−1) = ‖u‖_q^(q−2):
    one scalar root in place of the projected gradient of the original paper.

    Args:
        p: 1 < p ≤ 2; smaller is smoother around the vertices.
        gamma: the strength of the regularizer.

    >>> Pnormmax(1.5)(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.6326, 0.3674, 0.0000, 0.0000])
    """

    name: ClassVar[str] = "pnormmax"
    _solver = bound_solver(ops.PNORMMAX_KERNELS, "p")

    p: float = 1.5

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_number("p", self.p, above=1, maximum=2)

    def solve(self, scores: Tensor) -> Tensor:
        return ops.pnormmax(scores, self.p)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.reference.pnormmax_jvp(y, v, self.p)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.pnormmax_jvp(y, v, self.p)

    def omega(self, y: Tensor) -> Tensor:
        return self._norm(y).squeeze(-1) ** 2 / 2

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        return 0.5

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        peak, at = y.max(-1, keepdim=True)
        slope = self._norm(y) ** (2 - self.p) * peak ** (self.p - 1)
        return (scores.gather(-1, at) - slope).squeeze(-1)

    def _norm(self, y: Tensor) -> Tensor:
        return ops.reference.norm(y, self.p)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        for p in (1.1, 1.5, 1.9, 2.0):
            yield cls(p)
        yield cls(1.5, gamma=0.5)


def pnormmax(
    scores: Tensor, dim: int = -1, *, p: float = 1.5, gamma: float | Tensor = 1.0
) -> Tensor:
    """The mapping regularized by half a squared p-norm: sparsemax with smoother transitions.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        p: 1 < p ≤ 2; sparsemax at 2.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Probabilities like `scores`. Linear time in expectation; only the result is saved for
        backward.

    >>> pnormmax(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.6549, 0.3451, 0.0000, 0.0000])

    References: niculae2017regularized.
    """
    return Pnormmax.of(p=p, gamma=gamma)(scores, dim)
