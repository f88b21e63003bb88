"""A structure made of others over shared variables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ._base import AbstractStructure
from ._checks import (
    check_extra_scores,
    check_extra_target,
    check_member,
    check_structure,
    check_zeros_and_ones,
)
from ._factors import LogicFactor, Xor
from ._problem import ExtraScores, Problem


@dataclass(frozen=True, eq=False)
class Group:
    """Factors of one kind, which are solved together."""

    factor: AbstractStructure
    index: Tensor
    """(F, *factor.shape): the variables of each factor"""
    negated: Tensor | None
    """(F, *factor.shape): which of them count as their negation"""

    @property
    def count(self) -> int:
        return len(self.index)

    def is_like(self, other: Group) -> bool:
        """Whether the other has the same factors over the same variables."""
        negated, others = self.negated, other.negated
        same_signs = negated is others or (
            negated is not None and others is not None and negated.equal(others)
        )
        return self.factor == other.factor and self.index.equal(other.index) and same_signs

    def extra_target(self, y: Tensor, shape: tuple[int, ...]) -> Tensor:
        """What structures of the graph, zeros and ones (B, n), have of extra scores of that shape
        for one factor, (B F, *shape)."""
        parts = y[:, self.index.flatten()].reshape(len(y), *self.index.shape)
        if self.negated is not None:
            parts = torch.where(self.negated.to(parts.device), 1 - parts, parts)
        parts = parts.flatten(0, 1)
        # With a score of 1 for each of its parts and −1 for the others it is the best one.
        problem = self.factor.problem(2 * parts - 1, parts.new_zeros(len(parts), *shape))
        best = self.factor.best_vertices(problem)
        check_member("target", self.factor, parts, best.indicator)
        return problem.restore(best.indicator, best.extra)[1]


class FactorGraph(AbstractStructure):
    """Factors over shared variables: each is a structure, and its parts are variables of the graph.

    Args:
        shape: the shape of the variables, which is that of the scores of one instance.

    `add` adds factors. `sparsemap` and `map_inference` solve the graph's relaxation: the marginals
    u for which the part of u that each factor sees is a mean of its structures. Without cycles
    among the factors these are the marginals of the graph's own structures; with cycles there may
    be more of them. A variable without a factor is any number between 0 and 1.

    >>> from fenchel import Budget, DependencyTree, FactorGraph, sparsemap
    >>> graph = FactorGraph((3, 3))
    >>> graph.add(DependencyTree(3), graph.variables)
    >>> graph.add(Budget(3, 1), graph.variables)  # a word has one child, or is the root: itself
    >>> scores = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> posterior = sparsemap(graph, scores)
    >>> bool(posterior.converged)
    True

    References: niculae2020lpsparsemap.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        if not isinstance(shape, tuple):
            raise TypeError(f"`shape` must be a tuple, got {_checks.type_name(shape)}.")
        if not shape:
            raise ValueError("`shape` must have at least one dimension, got ().")
        for size in shape:
            _checks.check_size("shape", size)
        self._shape = shape
        self.groups: list[Group] = []
        self.name = "FactorGraph"  # type: ignore[misc]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def variables(self) -> Tensor:
        """(*shape): the number of each variable, from which an `index` is cut."""
        return torch.arange(math.prod(self.shape)).reshape(self.shape)

    @property
    def extra_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The first extra score of each group of factors that has some, in the order of `add`."""
        return tuple(group.factor.extra_names[0] for group in self._groups_with_extra)

    @property
    def _groups_with_extra(self) -> list[Group]:
        return [group for group in self.groups if group.factor.extra_names]

    def add(self, factor: AbstractStructure, index: Tensor, negated: Tensor | None = None) -> None:
        """Adds factors of one kind.

        Args:
            factor: any structure. A logic factor may leave its size to the index.
            index: (F, *factor.shape) integers, the variables of each of F factors, as numbered by
                `variables`; or (*factor.shape) for one factor.
            negated: booleans that broadcast to the index: true where the factor sees 1 − u instead
                of u.
        Raises:
            TypeError, ValueError: for input of the wrong kind, shape or value.
        """
        check_structure(factor, AbstractStructure)
        if isinstance(factor, FactorGraph):
            raise TypeError("`factor` must be a structure other than a graph; add its factors.")
        _check_index(index, math.prod(self.shape))
        if isinstance(factor, LogicFactor) and factor.d is None:
            if not 1 <= index.ndim <= 2:
                raise ValueError(f"`index` must have shape (F, d), got {tuple(index.shape)}.")
            factor = factor.resize(index.shape[-1])
        own = factor.shape
        if tuple(index.shape) not in (own, (len(index), *own)):
            wanted = ", ".join(map(str, ("F", *own)))
            raise ValueError(f"`index` must have shape ({wanted}), got {tuple(index.shape)}.")
        index = index.detach().long().cpu().reshape(-1, *own)
        if negated is not None:
            negated = _check_negated(negated, index)
        self.groups.append(Group(factor, index, negated))

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        raise NotImplementedError(
            "the best structure of a FactorGraph is intractable; `fenchel.map_inference` solves "
            "its relaxation."
        )

    def best_vertices(self, problem: Problem) -> Any:
        from .relaxation._linear import relax  # which imports this file

        return relax(problem)  # type: ignore[arg-type]

    @property
    def intractable_message(self) -> str:
        return (
            "the log-partition and the marginals of a FactorGraph are intractable: its factors "
            "share variables; use `fenchel.sparsemap`, which needs only the factors."
        )

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        raise NotImplementedError(self.intractable_message)

    def problem(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> GraphProblem:
        base = super().problem(scores, None, lengths, mask)
        layout, pieces = [], []
        if extra_scores is not None:
            given = extra_scores if isinstance(extra_scores, tuple) else (extra_scores,)
            check_extra_scores(given, self.extra_names, self.name, scores)
            for group, piece in zip(self._groups_with_extra, given, strict=True):
                if piece is None:
                    layout.append(None)
                    continue
                batch = torch.Size((*base.batch, group.count))
                try:
                    own_dims = group.factor.num_extra_dims(0, piece.shape, batch)
                except ValueError as error:
                    raise ValueError(
                        f"{error} The last of these batch dimensions counts the factors of one "
                        f"`add`, here {group.count} × {group.factor}."
                    ) from None
                own = piece.shape[piece.ndim - own_dims :]
                layout.append((group.count, *own))
                size = group.count * math.prod(own)
                pieces.append(piece.expand(*batch, *own).reshape(len(base.scores), size))
        merged = torch.cat(pieces, -1).to(base.scores.dtype) if pieces else None
        as_tuple = isinstance(extra_scores, tuple)
        known = base.scores, merged, base.lengths, base.batch, base.dtype, base.form
        return GraphProblem(self, *known, as_tuple, layout)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        graph = cls((2, 2))
        graph.add(Xor(), graph.variables)
        yield graph

    def is_like(self, other: AbstractStructure) -> bool:
        if not isinstance(other, FactorGraph) or other.shape != self.shape:
            return False
        pairs = zip(self.groups, other.groups, strict=False)
        return self is other or (
            len(self.groups) == len(other.groups) and all(a.is_like(b) for a, b in pairs)
        )

    def __repr__(self) -> str:
        parts = ", ".join(f"{group.count} × {group.factor}" for group in self.groups)
        return f"FactorGraph({self.shape}: {parts or 'no factors'})"


@dataclass(frozen=True, eq=False)
class GraphProblem(Problem):
    """The scores of a batch of graphs; the extra scores of all groups are merged, (B, m)."""

    as_tuple: bool
    layout: list[tuple[int, ...] | None]
    """The shape (F, …) of the extra scores of each group that has some; None if not given"""

    @property
    def graph(self) -> FactorGraph:
        return self.structure  # type: ignore[return-value]

    def split_extra(self, merged: Tensor) -> list[Tensor | None]:
        """Values (B, m) for each group that has extra scores, (B, F, …)."""
        found, start = [], 0
        for shape in self.layout:
            size = 0 if shape is None else math.prod(shape)
            piece = merged[:, start : start + size]
            found.append(None if shape is None else piece.reshape(len(merged), *shape))
            start += size
        return found

    def extra_target(self, y: Tensor, z: Any) -> Tensor:
        """The target (B, m) of merged extra scores, from that of the scores, (B, *shape), and what
        was given for the extra scores, in their form; None where y determines it."""
        if z is None:
            check_zeros_and_ones("target", y)
        given = [None] * len(self.layout) if z is None else list(z) if self.as_tuple else [z]
        if len(given) != len(self.layout):
            raise ValueError(
                f"`target` must have {len(self.layout)} tensors or None for the extra scores, as "
                f"they were given; got {len(given)}."
            )
        groups, pieces = self.graph._groups_with_extra, []
        for group, shape, piece in zip(groups, self.layout, given, strict=True):
            if shape is None:
                continue
            if piece is None:
                piece = group.extra_target(y.detach().flatten(1), shape[1:])
            elif isinstance(piece, Tensor) and piece.shape == shape[1:]:
                piece = piece.expand(*self.batch, *shape)  # as one extra score for all factors
            else:
                check_extra_target(piece, self.batch, shape)
            pieces.append(piece.reshape(len(y), math.prod(shape)).to(y.dtype))
        return torch.cat(pieces, -1)

    def restore(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Any]:
        if v is None:
            return self.restore_batch(u), None
        pieces = self.split_extra(v)
        found = tuple(None if piece is None else self.restore_batch(piece) for piece in pieces)
        return self.restore_batch(u), found if self.as_tuple else found[0]


def _check_index(index: Any, num_variables: int) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(f"`index` must be a torch.Tensor, got {_checks.type_name(index)}.")
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"`index` must have integers, got {index.dtype}.")
    if not index.numel():
        raise ValueError(f"`index` must not be empty, got shape {tuple(index.shape)}.")
    outside = (index < 0) | (index >= num_variables)
    if outside.any():
        raise ValueError(
            f"`index` must be at least 0 and below the number of variables, {num_variables}; got "
            f"{int(index[outside][0])}."
        )


def _check_negated(negated: Any, index: Tensor) -> Tensor | None:
    if not isinstance(negated, Tensor) or negated.dtype != torch.bool:
        found = negated.dtype if isinstance(negated, Tensor) else _checks.type_name(negated)
        raise TypeError(f"`negated` must be a boolean torch.Tensor, got {found}.")
    try:
        negated = negated.cpu().expand_as(index)
    except RuntimeError:
        raise ValueError(
            f"`negated` must broadcast to the index, {tuple(index.shape)}; got "
            f"{tuple(negated.shape)}."
        ) from None
    return negated if negated.any() else None
