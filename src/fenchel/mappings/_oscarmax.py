"""oscarmax: entries fuse into clusters of equal weight, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import entmax as entmax_ops
from ..ops import oscarmax as ops
from ._base import AbstractMapping
from ._eager import bound_solver
from ._protocols import HasGroups, HasKernels


@final
@dataclass(frozen=True, eq=False)
class Oscarmax(AbstractMapping, HasKernels, HasGroups):
    """Ω(y) = ½‖y‖² + λ Σ_{i<j} max(y_i, y_j), solved exactly.

    On the simplex y ≥ 0, so the sorted scores less the weights λ(d−i), made non-increasing by
    isotonic regression and projected, are the solution; no absolute values are involved.

    Args:
        lam: λ ≥ 0; larger fuses more. Sparsemax at 0.
        gamma: the strength of the whole regularizer.

    >>> Oscarmax(0.1)(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.5333, 0.4633, 0.0033, 0.0000])
    """

    name: ClassVar[str] = "oscarmax"
    _solver = bound_solver(  # at zero the Jacobian is another
        ops.KERNELS, "lam", above=0.0, takes_half=False
    )

    lam: float = 0.01

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_number("lam", self.lam, minimum=0)

    def solve(self, scores: Tensor) -> Tensor:
        return ops.oscarmax(scores, self.lam)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        if self.lam == 0:  # equal entries are then no group
            return entmax_ops.reference.entmax_jvp(y, v, 2.0)
        return ops.reference.oscarmax_jvp(y, v)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.oscarmax_jvp(y, v) if self.lam > 0 else entmax_ops.entmax_jvp(y, v, 2.0)

    def omega(self, y: Tensor) -> Tensor:
        return self.kept_omega(y, y)

    def kept_omega(self, y: Tensor, scores: Tensor) -> Tensor:
        # The i-th largest of n entries is the larger one in n − i pairs; what is deleted is zero.
        place = torch.ones_like(y).cumsum(-1) - 1  # arange would not be sharded like y
        pairs = place - (scores == -torch.inf).sum(-1, keepdim=True)
        return (y * y).sum(-1) / 2 + self.lam * (y.sort(-1).values * pairs).sum(-1)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        return 0.5 + self.lam * ((scores > -torch.inf).sum(-1).to(torch.float64) - 1)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        for lam in (0.0, 0.01, 0.2):
            yield cls(lam)
        yield cls(0.1, gamma=0.5)


def oscarmax(
    scores: Tensor, dim: int = -1, *, lam: float = 0.01, gamma: float | Tensor = 1.0
) -> Tensor:
    """A sparse mapping that gives entries of similar score equal weight: attention to clusters.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        lam: λ ≥ 0, how strongly entries fuse.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Probabilities like `scores`. Time d log d; only the result is saved for backward.

    >>> oscarmax(torch.tensor([1.0, 0.6, -1.0, 0.9]), lam=0.2)
    tensor([0.3500, 0.3000, 0.0000, 0.3500])

    References: niculae2017regularized.
    """
    return Oscarmax.of(lam=lam, gamma=gamma)(scores, dim)
