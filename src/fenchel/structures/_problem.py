"""The scores of a batch of instances, checked, with one batch dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ._base import AbstractStructure

ExtraScores = Tensor | tuple[Tensor | None, ...]
"""Extra scores as a user gives them: one tensor, or several in the structure's order."""


class Vertices(NamedTuple):
    """The best structure of each instance."""

    indicator: Tensor
    """(..., *shape): which parts it has; zeros where there is no structure."""
    extra: Any
    """The same for the extra scores, in the form in which they were given; None if none."""
    codes: Tensor | None
    """(..., positions) in int64: the option that each position takes, −1 for none; None for a
    structure of your own."""
    value: Tensor
    """(...): its score, differentiable; −inf where there is no structure."""


class Form(NamedTuple):
    """How extra scores were given."""

    shapes: tuple[tuple[int, ...] | None, ...]
    """What one instance has of each; None for those that were not given."""
    as_tuple: bool

    def restored(self, pieces: tuple[Tensor, ...]) -> Any:
        """Results (B, …), one for each extra score that may be given, in that form."""
        found = tuple(
            None if shape is None else piece.reshape(len(piece), *shape)
            for shape, piece in zip(self.shapes, pieces, strict=True)
        )
        return found if self.as_tuple else found[0]


@dataclass(frozen=True, eq=False)
class Problem:
    """The scores of a batch, as operators take them.

    Args:
        structure: what is scored.
        scores: (B, *structure.shape), float32 or float64.
        extra_scores: (B or 1, …) in the same type, or None.
        lengths: (B, k) in int64, or None.
        batch: the dimensions that B stands for.
        dtype: the type that results have.
        form: how the user gave extra scores; None for none.
    """

    structure: AbstractStructure
    scores: Tensor
    extra_scores: Tensor | None
    lengths: Tensor | None
    batch: torch.Size
    dtype: torch.dtype
    form: Form | None

    def taken_apart(self) -> Problem:
        """The same with an extra score of its own for each place that uses one."""
        if self.extra_scores is None:
            return self
        scores = self.structure.with_own(self.scores, self.extra_scores, self.lengths)
        extra_scores, form = self.structure.apart(self.extra_scores), self.form
        if form is not None and form.shapes[0] is not None:
            form = form._replace(shapes=(tuple(extra_scores.shape[1:]), *form.shapes[1:]))
        return replace(self, scores=scores, extra_scores=extra_scores, form=form)

    def unbatched(self, values: Tensor) -> Tensor:
        """What belongs to each instance, (B, …), with the user's batch dimensions and type."""
        values = values.reshape((*self.batch, *values.shape[1:]))
        return values.to(self.dtype) if values.is_floating_point() else values

    def restored(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Any]:
        """What belongs to each score and extra score (B, …), in the form these came in."""
        if self.form is None:
            return self.unbatched(u), None
        found = self.form.restored(self.structure.unfold(u, v, self.lengths))
        if not isinstance(found, tuple):
            return self.unbatched(u), self.unbatched(found)
        pieces = (None if piece is None else self.unbatched(piece) for piece in found)
        return self.unbatched(u), tuple(pieces)
