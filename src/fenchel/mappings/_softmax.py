"""softmax: the dense member of the family, with the contract of all the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from ..ops import entmax as ops
from ._base import AbstractMapping
from ._eager import bound_class_loss, bound_solver
from ._tsallis import AbstractTsallis


@final
@dataclass(frozen=True, eq=False)
class Softmax(AbstractTsallis):
    """Ω(y) = Σ y log y, the negative entropy; the solution is y ∝ exp(θ/γ).

    Args:
        gamma: the temperature.

    >>> scores = torch.tensor([1.1, 0.93, 0.37, -0.4])
    >>> Softmax(gamma=0.5)(scores)
    tensor([0.5016, 0.3570, 0.1165, 0.0250])
    >>> Softmax().max(scores)  # log Σ exp
    tensor(2.0356)
    """

    name: ClassVar[str] = "softmax"
    _solver = bound_solver(ops.KERNELS, 1.0)
    _class_loss = bound_class_loss(ops.LOSS_KERNELS, 1.0)

    @property
    def exponent(self) -> float:
        return 1.0

    def omega(self, y: Tensor) -> Tensor:
        return torch.special.xlogy(y, y).sum(-1)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        yield cls()
        yield cls(gamma=2.0)


def softmax(scores: Tensor, dim: int = -1, *, gamma: float | Tensor = 1.0) -> Tensor:
    """softmax of `scores`/γ along `dim`, with zeros instead of NaN for rows that are all −inf.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        gamma: γ > 0, the temperature, a number or a tensor with one value per row.
    Returns:
        Probabilities like `scores`.

    >>> softmax(torch.tensor([2.0, 1.0, 0.1, -1.0]))
    tensor([0.6381, 0.2347, 0.0954, 0.0318])
    """
    return Softmax.of(gamma=gamma)(scores, dim)
