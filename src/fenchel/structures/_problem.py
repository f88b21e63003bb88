"""The scores of a batch of instances, checked, with one batch dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ._base import AbstractStructure

Additional = Tensor | tuple[Tensor | None, ...]
"""Additional scores as a user gives them: one tensor, or several in the structure's order."""


class Vertices(NamedTuple):
    """The best structure of each instance."""

    indicator: Tensor
    """(..., *shape): which parts it has; zeros where there is no structure."""
    additional: Any
    """The same for the additional scores, in the form in which they were given; None if none."""
    codes: Tensor | None
    """(..., positions) in int64: the option that each position takes, −1 for none; None for a
    structure of your own."""
    value: Tensor
    """(...): its score, differentiable; −inf where there is no structure."""


class Form(NamedTuple):
    """How additional scores were given."""

    pieces: tuple[Tensor | None, ...]
    as_tuple: bool

    def restored(self, pieces: tuple[Any, ...]) -> Any:
        """Results, one for each additional score that could have been given, in the same form."""
        if not self.as_tuple:
            return pieces[0]
        return tuple(
            None if piece is None else result
            for piece, result in zip(self.pieces, pieces, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """The scores of a batch, as operators take them.

    Args:
        structure: what is scored.
        scores: (B, *structure.shape), float32 or float64.
        additional: (B or 1, …) in the same type, or None.
        lengths: (B, k) in int64, or None.
        batch: the dimensions that B stands for.
        dtype: the type that results have.
        form: how the user gave additional scores; None for none.
    """

    structure: AbstractStructure
    scores: Tensor
    additional: Tensor | None
    lengths: Tensor | None
    batch: torch.Size
    dtype: torch.dtype
    form: Form | None

    def unbatched(self, values: Tensor) -> Tensor:
        """What belongs to each instance, (B, …), with the user's batch dimensions and type."""
        values = values.reshape((*self.batch, *values.shape[1:]))
        return values.to(self.dtype) if values.is_floating_point() else values

    def restored(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Any]:
        """What belongs to each score and additional score (B, …), in the form these came in."""
        if self.form is None:
            return self.unbatched(u), None
        pieces = self.structure.unfold(u, v, self.lengths)
        return self.unbatched(u), self.form.restored(tuple(map(self.unbatched, pieces)))
