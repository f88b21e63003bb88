"""What every structure is: the abstract class, the registry, and how its scores are read."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import _checks
from ._problem import ExtraScores, Form, Problem, Vertices

_REGISTRY: dict[str, type[AbstractStructure]] = {}


class AbstractStructure(abc.ABC):
    """A set of structures, each a vertex: a vector of parts, mostly zeros and ones.

    A structure states `name`, `shape`, `argmax`, `members` and `examples`; where it is tractable
    `log_partition`. Scores have one batch dimension in all of these, (B, *shape). A subclass with a
    `name` is registered under it.
    """

    name: ClassVar[str]
    extra_names: ClassVar[tuple[str, ...]] = ()
    """The extra scores it takes, in order."""
    options_dim: ClassVar[int | None] = None
    """The dimension of the scores along which the options of one position lie; None if a part is
    there or not by itself."""
    projects: ClassVar[bool] = False
    """Whether `project` is there."""

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            return
        other = _REGISTRY.get(cls.name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise ValueError(f"a structure named {cls.name!r} is already registered: {other!r}.")
        _REGISTRY[cls.name] = cls

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores of one instance."""

    @property
    def sides(self) -> tuple[int, ...]:
        """The sizes that `lengths` bounds for each instance; none if all are of one size."""
        return ()

    @abc.abstractmethod
    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        """The best structure of each instance of a batch.

        A structure without extra scores and lengths may take scores alone.

        Args:
            scores: (B, *shape), float32 or float64.
            extra_scores: (B or 1, …), where the structure has extra scores and they are given.
            lengths: (B, k) in int64, where the structure has `sides` and lengths are given.
        Returns:
            Indicators like the scores; or a pair of these and of the indicators of extra_scores
            scores, (B, …), where there are such.
        """

    @abc.abstractmethod
    def members(self) -> Tensor:
        """The indicators (K, *shape) of all structures, for tests of small ones."""

    @classmethod
    @abc.abstractmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        """A few small instances that exercise every branch; tests run over them."""

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """log Σ exp of the scores of all structures, (B), differentiable; arguments as `argmax`."""
        raise NotImplementedError(self.intractable)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient of `log_partition`, of each instance for itself, differentiable."""
        given = [scores]
        if extra_scores is not None:
            given.append(extra_scores.expand(scores.shape[0], *extra_scores.shape[1:]))
        watched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        with torch.enable_grad():
            inputs = [
                t if watched and t.requires_grad else t.detach().requires_grad_() for t in given
            ]
            extra = inputs[1] if extra_scores is not None else None
            values = self.log_partition(*self.arguments(inputs[0], extra, lengths))
            u, *v = torch.autograd.grad(values.sum(), inputs, create_graph=watched)
        return u, v[0] if v else None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The closest point to scores (B, *shape) among all marginals, in closed form."""
        raise NotImplementedError(f"{self.name} has no closed form; use `fenchel.sparsemap`.")

    def within(self, lengths: Tensor) -> Tensor:
        """Which scores (B, *shape) belong to instances of these sizes, (B, k)."""
        first = torch.arange(self.shape[0], device=lengths.device) < lengths[:, :1]
        return first.reshape(-1, self.shape[0], *[1] * (len(self.shape) - 1)).expand(
            -1, *self.shape
        )

    def apart(self, extra_scores: Tensor) -> Tensor:
        """Extra scores (B or 1, …) with one of its own for each place that uses one, without
        those that `with_own` adds."""
        return extra_scores

    def with_own(self, scores: Tensor, extra_scores: Tensor, lengths: Tensor | None) -> Tensor:
        """Scores (B, *shape) with the extra ones that belong to a single part added."""
        return scores

    @property
    def intractable(self) -> str:
        """Why there is no log-partition, for an error."""
        return f"{self.name} has no log-partition; use MAP inference or SparseMAP."

    def fold(
        self, scores: Tensor, extra_scores: tuple[Tensor | None, ...], lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores (B, *shape) and extra scores (B or 1, …) from those that a user gives.

        Args:
            scores: (B, *shape).
            extra_scores: one for each of `extra_names`, with any batch dimensions flattened.
            lengths: (B, k) or None.
        """
        return scores, extra_scores[0] if extra_scores else None

    def unfold(self, u: Tensor, v: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, ...]:
        """The inverse for marginals: what belongs to each of the extra scores, (B, …)."""
        return () if v is None else (v,)

    def fold_target(
        self, y: Tensor, z: Tensor | None, extra_scores: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Targets (B, …) of folded extra scores (B or 1, …) from those of the scores,
        (B, *shape), and of the first extra score, (B, …) or None where it was not given."""
        like = y.new_zeros(len(y), *extra_scores.shape[1:])
        return like if z is None else z.reshape(like.shape)

    def extra_shape(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        """How many dimensions of an extra score belong to one instance; raises if it does not
        fit."""
        raise NotImplementedError

    def vertices(self, problem: Problem) -> Vertices:
        """The best structures of a batch, with one batch dimension."""
        found = self.argmax(*self.arguments(problem.scores, problem.extra_scores, problem.lengths))
        indicator, extra_scores = found if isinstance(found, tuple) else (found, None)
        _checks.indicators(indicator, problem.scores.shape)
        indicator = indicator.detach().to(problem.scores)
        _checks.finite_indicators(indicator, problem.scores)
        value = torch.where(indicator == 0, 0.0, problem.scores * indicator).flatten(1).sum(1)
        if extra_scores is not None and problem.extra_scores is not None:
            extra = torch.where(extra_scores == 0, 0.0, problem.extra_scores * extra_scores)
            value = value + extra.flatten(1).sum(1)
        return Vertices(indicator, extra_scores, None, value)

    @staticmethod
    def arguments(scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None) -> tuple:
        """The arguments of `argmax`, without those that are not there."""
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
            lengths: (...) integers, (..., k) if the structure has k > 1 `sides`; or None.
            mask: (..., n) booleans instead, true on the first positions of each instance.
        Raises:
            TypeError, ValueError: for input of the wrong kind, shape or value.
        """
        _checks.dense_floats("scores", scores)
        batch = _checks.batch_of("scores", scores, self.shape)
        sizes = _checks.lengths(lengths, mask, batch, self.sides, scores.device)
        dtype = scores.dtype
        wide = torch.float32 if dtype in _checks.HALF else dtype
        flat = _bounded(scores.to(wide)).reshape(batch.numel(), *self.shape)
        form, pieces = None, (None,) * len(self.extra_names)
        if extra_scores is not None:
            together = extra_scores if isinstance(extra_scores, tuple) else (extra_scores,)
            if not isinstance(extra_scores, tuple):
                together += (None,) * (len(self.extra_names) - 1)
            _checks.extra_scores(together, self.extra_names, self.name, scores)
            pieces = tuple(
                None if piece is None else self._flattened(k, _bounded(piece.to(wide)), batch)
                for k, piece in enumerate(together)
            )
            shapes = tuple(None if piece is None else tuple(piece.shape[1:]) for piece in pieces)
            form = Form(shapes, isinstance(extra_scores, tuple))
        flat, extra = self.fold(flat, pieces, sizes)
        return Problem(self, flat, extra, sizes, batch, dtype, form)

    def _flattened(self, position: int, piece: Tensor, batch: torch.Size) -> Tensor:
        """Extra scores with one batch dimension, of size 1 if all instances share them."""
        own = self.extra_shape(position, piece.shape, batch)
        tail = piece.shape[piece.ndim - own :]
        lead = piece.shape[: piece.ndim - own]
        if lead.numel() == 1:
            return piece.reshape(1, *tail)
        return piece.expand(*batch, *tail).reshape(batch.numel(), *tail)


def _bounded(scores: Tensor) -> Tensor:
    """Scores of which a million have room in a sum: larger ones are infinite."""
    if scores.dtype != torch.float64:  # others are added up in it
        return scores
    return torch.where(scores.abs() <= 2.0**1000, scores, scores.detach() * torch.inf)


def get(name: str, **options: Any) -> AbstractStructure:
    """The registered structure of that name, with its options.

    >>> get("matching", rows=2, columns=3).shape
    (2, 3)
    """
    if name not in _REGISTRY:
        raise ValueError(f"`name` must be one of {', '.join(names())}, got {name!r}.")
    structure = _REGISTRY[name]
    known = list(inspect.signature(structure).parameters)
    for option in options:
        if option not in known:
            raise TypeError(f"{name} has no option `{option}`; it takes {', '.join(known)}.")
    return structure(**options)


def names() -> list[str]:
    """The names of all registered structures.

    >>> "sequence" in names()
    True
    """
    return sorted(_REGISTRY)


def examples() -> list[AbstractStructure]:
    """The examples of all registered structures, over which tests run.

    >>> {example.name for example in examples()} == set(names())
    True
    """
    return [example for name in names() for example in _REGISTRY[name].examples()]
