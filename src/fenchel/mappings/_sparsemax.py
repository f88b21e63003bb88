"""sparsemax: the Euclidean projection onto the simplex."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from ..ops import entmax as ops
from ._base import AbstractMapping
from ._eager import bound_class_loss, bound_solver
from ._protocols import HasThreshold
from ._tsallis import AbstractTsallis


@final
@dataclass(frozen=True, eq=False)
class Sparsemax(AbstractTsallis, HasThreshold):
    """Ω(y) = ½‖y‖²; the solution is y = [θ/γ − τ]₊.

    Args:
        gamma: the strength of the regularizer; smaller is sparser.

    >>> scores = torch.tensor([1.1, 0.93, 0.37, -0.4])
    >>> Sparsemax()(scores)
    tensor([0.5850, 0.4150, 0.0000, 0.0000])
    >>> Sparsemax().support(scores).indices
    tensor([0, 1])
    """

    name: ClassVar[str] = "sparsemax"
    constant: ClassVar[float] = 0.5
    _solver = bound_solver(ops.KERNELS, 2.0)
    _class_loss = bound_class_loss(ops.LOSS_KERNELS, 2.0)

    @property
    def exponent(self) -> float:
        return 2.0

    def omega(self, y: Tensor) -> Tensor:
        return (y * y).sum(-1) / 2

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        return 0.5

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        peak, at = y.max(-1, keepdim=True)
        return (scores.gather(-1, at) - peak).squeeze(-1)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        yield cls()
        yield cls(gamma=0.3)


def sparsemax(scores: Tensor, dim: int = -1, *, gamma: float | Tensor = 1.0) -> Tensor:
    """sparsemax of `scores` along `dim`: the closest point of the simplex to `scores`/γ.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        gamma: γ > 0, the strength of the regularizer; smaller is sparser.
    Returns:
        Probabilities like `scores`, many of them exactly zero. Linear time in expectation; only
        the result is saved for backward.

    >>> sparsemax(torch.tensor([2.0, 1.0, 0.1, -1.0]))
    tensor([1., 0., 0., 0.])

    References: martins2016softmax.
    """
    return Sparsemax.of(gamma=gamma)(scores, dim)
