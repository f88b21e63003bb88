"""ksubset: a soft choice of k entries, each at most one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ..ops import ksubset as ops
from ._base import AbstractMapping
from ._checks import check_subset_size
from ._eager import bound_solver
from ._entmax import tsallis
from ._protocols import HasKernels, HasParameter


@final
@dataclass(frozen=True, eq=False)
class Ksubset(AbstractMapping, HasKernels, HasParameter):
    """argmax over y in [0, 1]^d with Σy = k; Ω the negative Tsallis entropy, at α = 2 (‖y‖² − k)/2.

    The solution is y = min(1, [1 + (α−1)(θ − t)]₊^(1/(α−1))), with t such that it sums to k.

    Args:
        k: between 0 and the number of entries, whole or not. A tensor holds one per row; the
            solution, but not its value `max`, has a gradient in it.
        alpha: α ≥ 1; at 1 no entry is exactly zero.
        gamma: the strength of the regularizer.

    >>> Ksubset(2)(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.9667, 0.7967, 0.2367, 0.0000])
    """

    name: ClassVar[str] = "ksubset"
    parameter: ClassVar[str] = "k"
    total: ClassVar[float | None] = None
    _solver = bound_solver(
        ops.KERNELS, parameter, option="alpha", minimum=0.0, max_option=2.0, is_part=True
    )

    k: float | Tensor = 2.0
    alpha: float = 2.0

    def check_fields(self) -> None:
        super().check_fields()
        _checks.check_real("k", self.k, minimum=0)
        _checks.check_number("alpha", self.alpha, minimum=1)

    def check_width(self, d: int) -> None:
        check_subset_size(self.k, d)

    def mass(self, scores: Tensor) -> float | Tensor:
        kept = (scores > -torch.inf).sum(-1).to(scores.dtype)
        if isinstance(self.k, Tensor):
            return torch.minimum(kept, self.k.squeeze(-1).to(scores.dtype))
        return kept.clamp(max=self.k)

    def anchor(self, scores: Tensor) -> Tensor | None:
        # Of the entries that are neither zero nor one, the ⌈k⌉-th largest is the nearest.
        ordered = scores.sort(-1, descending=True).values
        if not isinstance(self.k, Tensor):
            place = max(math.ceil(self.k), 1) - 1
            return ordered[..., place : place + 1]
        place = self.k.detach().ceil().to(torch.int64).clamp(1, scores.shape[-1]) - 1
        return ordered.gather(-1, place)

    def solve(self, scores: Tensor) -> Tensor:
        return ops.ksubset(scores, self.k, self.alpha)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.reference.ksubset_jvp(y, v, self.alpha)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.ksubset_jvp(y, v, self.alpha)

    def omega(self, y: Tensor) -> Tensor:
        return tsallis(y, self.alpha)

    def parameter_jvp(self, y: Tensor) -> Tensor:
        free = (y > 0) & (y < 1)
        s = torch.where(free, torch.where(free, y, 1.0) ** (2.0 - self.alpha), 0.0)
        mass = s.sum(-1, keepdim=True)
        return s / torch.where(mass > 0, mass, 1.0)

    def parameter_omega(self, y: Tensor) -> Tensor:
        raise NotImplementedError("the value of ksubset has no gradient in `k`; detach it.")

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        yield cls(1)
        yield cls(2)
        yield cls(2.5, alpha=1.5)
        yield cls(2, alpha=1.0)
        yield cls(3, alpha=1.2, gamma=0.5)


def ksubset(
    scores: Tensor,
    dim: int = -1,
    *,
    k: float | Tensor = 2.0,
    alpha: float = 2.0,
    gamma: float | Tensor = 1.0,
) -> Tensor:
    """A soft choice of k entries along `dim`: each in [0, 1], and k in all.

    Args:
        scores: floating point, any shape; −inf deletes an entry.
        dim: the dimension that is mapped.
        k: between 0 and the number of entries, a number or a tensor with one value per row.
        alpha: α ≥ 1; sparse above 1.
        gamma: γ > 0, the strength of the regularizer.
    Returns:
        Memberships like `scores`. A row with fewer than k entries left gives one to each.

    >>> ksubset(torch.tensor([2.0, 1.0, 0.6, -1.0]), k=2)
    tensor([1.0000, 0.7000, 0.3000, 0.0000])
    """
    return Ksubset.of(k=k, alpha=alpha, gamma=gamma)(scores, dim)
