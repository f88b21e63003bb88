"""fusedmax: neighbours fuse into segments of equal weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import entmax as entmax_ops
from ..ops import fusedmax as ops
from ._base import AbstractMapping
from ._eager import bound_solver
from ._protocols import HasGroups, HasKernels


@final
@dataclass(frozen=True, eq=False)
class Fusedmax(AbstractMapping, HasKernels, HasGroups):
    """Ω(y) = ½‖y‖² + λ Σ |y_{i+1} − y_i|: sparsemax of the total-variation prox of θ, exactly.

    Args:
        lam: λ ≥ 0; larger fuses more neighbours. Sparsemax at 0.
        gamma: the strength of the whole regularizer.

    >>> Fusedmax(0.1)(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.5350, 0.4650, 0.0000, 0.0000])
    """

    name: ClassVar[str] = "fusedmax"
    _solver = bound_solver(  # at zero the Jacobian is another
        ops.KERNELS, "lam", above=0.0, takes_half=False
    )

    lam: float = 0.1

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_number("lam", self.lam, minimum=0)

    def solve(self, scores: Tensor) -> Tensor:
        return ops.fusedmax(scores, self.lam)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        if self.lam == 0:  # equal entries are then no group
            return entmax_ops.reference.entmax_jvp(y, v, 2.0)
        return ops.reference.fusedmax_jvp(y, v)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.fusedmax_jvp(y, v) if self.lam > 0 else entmax_ops.entmax_jvp(y, v, 2.0)

    def omega(self, y: Tensor) -> Tensor:
        return (y * y).sum(-1) / 2 + self.lam * y.diff(dim=-1).abs().sum(-1)

    def kept_omega(self, y: Tensor, scores: Tensor) -> Tensor:
        kept = scores > -torch.inf
        # What is kept moves to the front, in order; a jump counts if its right end is kept.
        order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        jumps = y.gather(-1, order).diff(dim=-1).abs() * kept.gather(-1, order)[..., 1:]
        return (y * y).sum(-1) / 2 + self.lam * jumps.sum(-1)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        kept = scores > -torch.inf
        place = kept.new_ones(kept.shape, dtype=torch.int64).cumsum(-1) - 1
        before = (kept & (place < target)).any(-1)
        after = (kept & (place > target)).any(-1)
        return 0.5 + self.lam * (before.to(torch.float64) + after.to(torch.float64))

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        for lam in (0.0, 0.1, 1.0):
            yield cls(lam)
        yield cls(0.2, gamma=0.5)


def fusedmax(
    scores: Tensor, dim: int = -1, *, lam: float = 0.1, gamma: float | Tensor = 1.0
) -> Tensor:
    """A sparse mapping that gives neighbouring entries equal weight: attention to segments.

    Args:
        scores: floating point, any shape; −inf deletes an entry, and its neighbours close up.
        dim: the dimension that is mapped, along which entries are neighbours.
        lam: λ ≥ 0, how strongly neighbours fuse.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Probabilities like `scores`. Linear time; only the result is saved for backward.

    >>> fusedmax(torch.tensor([1.0, 0.9, -1.0, 0.6]), lam=0.2)
    tensor([0.4833, 0.4833, 0.0000, 0.0333])

    References: niculae2017regularized.
    """
    return Fusedmax.of(lam=lam, gamma=gamma)(scores, dim)
