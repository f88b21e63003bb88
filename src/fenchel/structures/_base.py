"""The abstract class of structures, and their registry."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import _checks
from .._registry import Registry
from .._transforms import is_transformed
from ..ops.sparsemap.solution import inner
from ._checks import (
    check_batch,
    check_extra_scores,
    check_finite_indicators,
    check_indicators,
    check_lengths,
    check_pair,
)
from ._problem import ExtraScores, Form, Problem, Vertices

REGISTRY: Registry[AbstractStructure] = Registry("structure")


class AbstractStructure(abc.ABC):
    """A set of structures, each a vertex: a vector of parts, mostly zeros and ones.

    A subclass states `name`, `shape`, `argmax` and `examples`, and `log_partition` if it is
    tractable. Scores have one batch dimension in all of these, (B, *shape). A subclass with a
    `name` is registered under it. `fenchel.testing.check_structure` checks it.

    >>> from fenchel import Sequence
    >>> structure = Sequence(2, 3)  # two words, each with one of three tags
    >>> structure.shape
    (2, 3)
    >>> scores = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])
    >>> structure.argmax(scores)
    tensor([[[1., 0., 0.],
             [0., 1., 0.]]])
    >>> structure.log_partition(scores)
    tensor([3.7910])
    """

    name: ClassVar[str]
    extra_names: ClassVar[tuple[str, ...]] = ()
    """The extra scores it takes, in order."""
    options_dim: ClassVar[int | None] = None
    """The dimension of the scores along which the options of one position lie; None if every part
    is a position, with the options 0 and 1."""
    lengths_of_dims: ClassVar[tuple[int, ...]] = (0,)
    """For the first dimensions of the scores, which of the lengths bounds them."""
    oracle_name: ClassVar[str] = "argmax"
    """What messages call the function that finds the best structure."""
    has_projection: ClassVar[bool] = False
    """Whether `project` is implemented, for scores without extra ones."""

    def __init_subclass__(cls) -> None:
        REGISTRY.register(cls)

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores of one instance."""

    def is_like(self, other: AbstractStructure) -> bool:
        """Whether the other is the same set of structures, as far as that is known."""
        return self is other or self == other

    @property
    def max_lengths(self) -> tuple[int, ...]:
        """The upper bounds of `lengths`, one or more; none if all instances have one size."""
        return ()

    @abc.abstractmethod
    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        """The best structure of each instance of a batch.

        A structure without extra scores and lengths may take scores alone.

        Args:
            scores: (B, *shape), float32 or float64.
            extra_scores: (B or 1, …), if the structure has `extra_names` and they are given.
            lengths: (B, k) in int64, if the structure has k `max_lengths` and lengths are given.
        Returns:
            Indicators like the scores; with extra scores a pair of these and of the indicators of
            the extra scores, (B, …).
        """

    @classmethod
    @abc.abstractmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        """A few small instances that exercise every branch; tests run over them."""

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """log Σ exp of the scores of all structures, (B), differentiable; arguments as `argmax`."""
        raise NotImplementedError(self.intractable_message)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient of `log_partition` of each instance, differentiable."""
        inputs = [scores]
        if extra_scores is not None:
            inputs.append(extra_scores.expand(scores.shape[0], *extra_scores.shape[1:]))

        def values(scores: Tensor, extra_scores: Tensor | None = None) -> Tensor:
            return self.log_partition(*self.arguments(scores, extra_scores, lengths))

        def total(*inputs: Tensor) -> tuple[Tensor, Tensor]:
            found = values(*inputs)
            return found.sum(), found

        if is_transformed():
            every = tuple(range(len(inputs)))
            (u, *v), found = torch.func.grad(total, every, has_aux=True)(*inputs)
        else:
            watched = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
            with torch.enable_grad():
                # Aliases, since one may have been computed from the other.
                inputs = [
                    x.view_as(x) if watched and x.requires_grad else x.detach().requires_grad_()
                    for x in inputs
                ]
                found = values(*inputs)
                u, *v = torch.autograd.grad(found.sum(), inputs, create_graph=watched)
        exists = found.detach() != -torch.inf
        u, *v = (_where(exists, x, torch.zeros_like(found)) for x in (u, *v))
        return u, v[0] if v else None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The marginals closest to scores (B, *shape), in closed form."""
        raise NotImplementedError(f"{self.name} has no closed form; use `fenchel.sparsemap`.")

    def length_mask(self, lengths: Tensor) -> Tensor:
        """Which scores (B, *shape) belong to instances of these lengths, (B, k)."""
        mask = lengths.new_ones(len(lengths), *self.shape, dtype=torch.bool)
        for dim, k in enumerate(self.lengths_of_dims, start=1):
            size = mask.shape[dim]
            inside = torch.arange(size, device=lengths.device) < lengths[:, k : k + 1]
            mask = mask & inside.reshape(-1, *[1] * (dim - 1), size, *[1] * (mask.ndim - 1 - dim))
        return mask

    def split_shared(self, extra_scores: Tensor) -> Tensor:
        """Extra scores (B or 1, …), with a copy of a shared one for each place that uses it, and
        without those that `merge_into_scores` adds to the scores."""
        return extra_scores

    def merge_into_scores(
        self, scores: Tensor, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Scores (B, *shape) plus the extra scores that belong to a single part."""
        return scores

    @property
    def intractable_message(self) -> str:
        """The error message of a structure without a log-partition."""
        return (
            f"{self.name} has no log-partition; use MAP inference or SparseMAP, or "
            "`fenchel.structures.Perturbed`, whose samples and marginals need MAP inference alone."
        )

    def merge_extra(self, scores: Tensor, extra_scores: tuple[Tensor | None, ...]) -> Tensor | None:
        """The extra scores that a user gives as one tensor (B or 1, …), as operators take them.

        Args:
            scores: (B, *shape).
            extra_scores: one or None for each of `extra_names`, (B or 1, …).
        """
        return extra_scores[0] if extra_scores else None

    def split_extra(
        self, u: Tensor, v: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The marginals (B, …) of each of `extra_names`, from those of the scores, (B, *shape), and
        of the merged extra scores, (B, …)."""
        return () if v is None else (v,)

    def merge_target(
        self, y: Tensor, z: Tensor | None, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """The target (B, …) of merged extra scores (B or 1, …), from that of the scores,
        (B, *shape), and of the first extra score, (B, …), or None if it was not given."""
        zeros = y.new_zeros(len(y), *extra_scores.shape[1:])
        return zeros if z is None else z.reshape(zeros.shape)

    def num_extra_dims(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        """How many dimensions of an extra score belong to one instance; raises if its shape does
        not fit."""
        raise NotImplementedError

    def best_indicators(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """The best structures (B, *shape) of a batch by `argmax`, and their extra parts, (B, …),
        checked."""
        scores, extra_scores = problem.scores, problem.extra_scores
        found, extra = self.argmax(*self.arguments(scores, extra_scores, problem.lengths)), None
        if extra_scores is not None:
            found, extra = check_pair(
                self.oracle_name, found, torch.Size((len(scores), *extra_scores.shape[1:]))
            )
            extra = extra.detach().to(scores)
            check_finite_indicators(self.oracle_name, extra, scores, extra_scores)
        indicator = found[0] if isinstance(found, tuple) else found
        check_indicators(self.oracle_name, indicator, scores.shape)
        indicator = indicator.detach().to(scores)
        check_finite_indicators(self.oracle_name, indicator, scores, extra_scores)
        return indicator, extra

    def best_vertices(self, problem: Problem) -> Vertices:
        """The best structures of a batch, with one batch dimension."""
        indicator, extra = self.best_indicators(problem)
        scores, extra_scores = problem.scores.flatten(1), problem.extra_scores
        value = inner(indicator.flatten(1), scores)
        unknown = scores.isnan() | (scores == torch.inf)
        if problem.lengths is not None:
            unknown = unknown & self.length_mask(problem.lengths).flatten(1)
        unknown = unknown.any(1)
        if extra is not None and extra_scores is not None:
            extra_scores = extra_scores.flatten(1)
            value = value + inner(extra.flatten(1), extra_scores)
            unknown = unknown | (extra_scores.isnan() | (extra_scores == torch.inf)).any(1)
        value = torch.where(unknown, torch.nan, value)
        absent = torch.where(unknown, torch.nan, 0.0).to(value)
        exists = value.detach().isfinite()
        indicator = _where(exists, indicator, absent)
        extra = None if extra is None else _where(exists, extra, absent)
        return Vertices(indicator, extra, None, value)

    @staticmethod
    def arguments(scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None) -> tuple:
        """The arguments of `argmax`, without those at the end that are None."""
        if lengths is not None:
            return scores, extra_scores, lengths
        return (scores,) if extra_scores is None else (scores, extra_scores)

    def problem(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Problem:
        """The scores as operators take them, checked.

        Args:
            scores: (..., *shape), floating point.
            extra_scores: one tensor or a tuple in the order of `extra_names`; None for none.
            lengths: (...) integers, (..., k) if the structure has k > 1 `max_lengths`; or None.
            mask: (..., n) booleans instead, true on the first positions of each instance.
        Raises:
            TypeError, ValueError: for input of the wrong kind, shape or value.
        """
        _checks.check_float_tensor("scores", scores)
        batch = check_batch("scores", scores, self.shape)
        sizes = check_lengths(lengths, mask, batch, self.max_lengths, scores.device)
        dtype = scores.dtype
        wide = torch.float32 if dtype in _checks.HALF else dtype
        flat = _clamp_to_infinity(scores.to(wide)).reshape(batch.numel(), *self.shape)
        form, pieces = None, (None,) * len(self.extra_names)
        if extra_scores is not None:
            given = extra_scores if isinstance(extra_scores, tuple) else (extra_scores,)
            if not isinstance(extra_scores, tuple):
                given += (None,) * (len(self.extra_names) - 1)
            check_extra_scores(given, self.extra_names, self.name, scores)
            pieces = tuple(
                None
                if piece is None
                else self._flatten_batch(k, _clamp_to_infinity(piece.to(wide)), batch)
                for k, piece in enumerate(given)
            )
            shapes = tuple(None if piece is None else tuple(piece.shape[1:]) for piece in pieces)
            form = Form(shapes, isinstance(extra_scores, tuple))
        extra = self.merge_extra(flat, pieces)
        return Problem(self, flat, extra, sizes, batch, dtype, form)

    def _flatten_batch(self, position: int, piece: Tensor, batch: torch.Size) -> Tensor:
        """Extra scores with one batch dimension, of size 1 if all instances share them."""
        own = self.num_extra_dims(position, piece.shape, batch)
        tail = piece.shape[piece.ndim - own :]
        lead = piece.shape[: piece.ndim - own]
        if lead.numel() == 1:
            return piece.reshape(1, *tail)
        return piece.expand(*batch, *tail).reshape(batch.numel(), *tail)


def _clamp_to_infinity(scores: Tensor) -> Tensor:
    """Scores with those beyond ±2¹⁰⁰⁰ replaced by ±inf, so that sums of a million are finite."""
    if scores.dtype != torch.float64:  # sums are in float64
        return scores
    return torch.where(scores.abs() <= 2.0**1000, scores, scores.detach() * torch.inf)


def _where(condition: Tensor, values: Tensor, other: Tensor) -> Tensor:
    """The values (B, …) of the instances (B) where a condition holds, elsewhere one number (B)."""
    shape = (-1, *[1] * (values.ndim - 1))
    return torch.where(condition.reshape(shape), values, other.reshape(shape))
