"""What softmax, sparsemax and entmax share: Ω is a negative Tsallis entropy, up to a constant."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..ops import entmax as ops
from ._base import AbstractMapping
from ._checks import NO_INDEX
from ._protocols import HasKernels, HasState, HasTerms


@dataclass(frozen=True, eq=False)
class AbstractTsallis(AbstractMapping, HasKernels, HasState, HasTerms):
    """Ω(y) = Σ (y^α − y) / (α(α−1)) + constant, with α the `exponent`."""

    constant: ClassVar[float] = 0.0

    @property
    @abc.abstractmethod
    def exponent(self) -> float | Tensor:
        """α, a number or one per row (..., 1)."""

    def solve(self, scores: Tensor) -> Tensor:
        return ops.entmax(scores, self.exponent)

    def kernel_solve(self, scores: Tensor) -> Tensor:
        return ops.entmax.eager(scores, self.exponent)  # type: ignore[attr-defined]

    def solve_max(self, scores: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, y = ops.entmax_max(scores, self.exponent)
        return self._less(value, scores, target), y

    def solve_state(self, scores: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, state = ops.entmax_state(scores, self.exponent)
        return self._less(value, scores, target), state

    def class_losses(
        self, scores: Tensor, target: Tensor, ignore_index: int | None
    ) -> tuple[Tensor, Tensor]:
        ignored = NO_INDEX if ignore_index is None else ignore_index
        return ops.entmax_loss(scores, target, ignored, self.exponent)

    def _less(self, value: Tensor, scores: Tensor, target: Tensor | None) -> Tensor:
        """A kernel's max_Ω, which has digits to spare, less the target's score and the constant."""
        if target is not None:
            value = value - scores.gather(-1, target).squeeze(-1)
        if self.constant:
            value = value - self.constant
        return value.to(torch.promote_types(scores.dtype, torch.float32))

    def gradient(
        self, scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, inplace: bool
    ) -> Tensor:
        if inplace:
            ops.entmax_gradient_(scores, state, target, weights, self.exponent)
            return scores
        return ops.entmax_gradient(scores, state, target, weights, self.exponent)

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.reference.entmax_jvp(y, v, self.exponent)

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        return ops.entmax_jvp(y, v, self.exponent)

    def support_from(
        self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, max_width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.entmax_support(scores, state, target, weights, max_width, self.exponent)
