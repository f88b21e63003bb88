"""The scores of a batch of instances, checked, with one batch dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .. import _checks

if TYPE_CHECKING:
    from ._base import AbstractStructure

ExtraScores = Tensor | tuple[Tensor | None, ...]
"""Extra scores as a user gives them: one tensor, or several in the structure's order."""


class Vertices(NamedTuple):
    """The best structure of each instance.

    >>> from fenchel import Matching, map_inference
    >>> best = map_inference(Matching(2, 2), torch.tensor([[3.0, 1.0], [0.0, 1.0]]))
    >>> best.indicator
    tensor([[1., 0.],
            [0., 1.]])
    >>> best.codes, best.value
    (tensor([0, 1]), tensor(4.))
    """

    indicator: Tensor
    """(..., *shape): which parts it has; zeros where there is no structure."""
    extra: Any
    """The same for the extra scores, in the form in which they were given; None if none."""
    codes: Tensor | None
    """(..., positions) in int64: the option that each position takes, −1 for none; None for a
    structure of your own."""
    value: Tensor
    """(...): its score, differentiable; −inf where there is no structure."""


class RelaxedVertices(NamedTuple):
    """The solution of the linear relaxation of a `FactorGraph`, for each instance.

    >>> from fenchel import FactorGraph, map_inference
    >>> from fenchel.structures import AtMostOne
    >>> graph = FactorGraph((3,))
    >>> graph.add(AtMostOne(2), torch.tensor([[0, 1], [1, 2]]))
    >>> best = map_inference(graph, torch.tensor([1.0, 1.5, 1.0]))
    >>> best.indicator, best.value
    (tensor([1., 0., 1.]), tensor(2.))
    >>> best.is_integral, best.converged
    (tensor(True), tensor(True))
    """

    indicator: Tensor
    """(..., *shape): the variables; if `is_integral`, the best structure of the graph."""
    extra: Any
    """The same for the extra scores, in the form in which they were given; None if none."""
    codes: None
    value: Tensor
    """(...): its score, differentiable. No structure of the graph has a higher one. −inf where
    there is no solution."""
    is_integral: Tensor
    """(...): whether all variables are integers."""
    converged: Tensor
    """(...): whether the solver reached its tolerance."""


class Form(NamedTuple):
    """How extra scores were given."""

    shapes: tuple[tuple[int, ...] | None, ...]
    """The shape of each in one instance; None for those that were not given."""
    as_tuple: bool

    def restore(self, pieces: tuple[Tensor, ...]) -> Any:
        """Results (B, …) for each extra score, in the form in which these were given."""
        found = tuple(
            None if shape is None else piece.reshape(len(piece), *shape)
            for shape, piece in zip(self.shapes, pieces, strict=True)
        )
        return found if self.as_tuple else found[0]


@dataclass(frozen=True, eq=False)
class Problem:
    """The scores of a batch, as operators take them.

    Args:
        structure: the set of structures.
        scores: (B, *structure.shape), float32 or float64.
        extra_scores: (B or 1, …) in the same type, or None.
        lengths: (B, k) in int64, or None.
        batch: the user's batch dimensions, B in all.
        dtype: the type of results.
        form: how the user gave extra scores; None for none.
    """

    structure: AbstractStructure
    scores: Tensor
    extra_scores: Tensor | None
    lengths: Tensor | None
    batch: torch.Size
    dtype: torch.dtype
    form: Form | None

    def split_shared_scores(self) -> Problem:
        """The same problem with a copy of a shared extra score for each place that uses it."""
        if self.extra_scores is None:
            return self
        scores = self.structure.merge_into_scores(self.scores, self.extra_scores, self.lengths)
        extra_scores, form = self.structure.split_shared(self.extra_scores), self.form
        if form is not None and form.shapes[0] is not None:
            form = form._replace(shapes=(tuple(extra_scores.shape[1:]), *form.shapes[1:]))
        return replace(self, scores=scores, extra_scores=extra_scores, form=form)

    def restore_batch(self, values: Tensor) -> Tensor:
        """Values (B, …) with the user's batch dimensions and type."""
        values = values.reshape((*self.batch, *values.shape[1:]))
        return values.to(self.dtype) if values.is_floating_point() else values

    def restore(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Any]:
        """Results (B, …) for the scores and extra scores, in the form in which these were given."""
        if self.form is None:
            return self.restore_batch(u), None
        found = self.form.restore(self.structure.split_extra(u, v, self.lengths))
        if not isinstance(found, tuple):
            return self.restore_batch(u), self.restore_batch(found)
        pieces = (None if piece is None else self.restore_batch(piece) for piece in found)
        return self.restore_batch(u), tuple(pieces)

    def broadcast_scores(self, name: str, values: Tensor) -> Tensor:
        """Values that broadcast to the user's scores, as (B, *shape) in the scores' type."""
        shape = torch.Size((*self.batch, *self.structure.shape))
        flat = _checks.broadcast_to_scores(name, values, shape).reshape(self.scores.shape)
        return flat.to(self.scores.dtype)
