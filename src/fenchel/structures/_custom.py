"""A structure of one's own, from a function that finds the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ._base import AbstractStructure
from ._checks import check_extra_dims, check_indicators, check_pair, check_zeros_behind

EXAMPLE = ((1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 2.0))
"""The vertices of the examples."""


@final
class Custom(AbstractStructure):
    """Any structure whose best one a Python function finds.

    Args:
        shape: the shape of the scores of one instance.
        oracle: from scores of that shape, float32 or float64, to the indicator of the best
            structure, a tensor of that shape, mostly of zeros and ones. With extra scores it takes
            these as second argument, and returns a pair: the indicator, and how often the structure
            uses each extra score.
        batched: whether the oracle takes and returns a batch (B, *shape).
        extra_shape: the shape of the extra scores of one instance, if it has any.
        lengths_of_dims: if instances can be smaller than `shape`, which of the `lengths` bounds
            each of its first dimensions: (0,) for sequences, (0, 0) for trees of n words with
            scores (n, n), (0, 1) for matchings, whose rows and columns have lengths of their own.

    Of a smaller instance an oracle for one instance sees its own scores alone. A batched oracle
    takes `lengths` as last argument, (B,), or (B, k) if there are k > 1 of them. Scores behind the
    end are −inf for it, and indicators must be zero there.

    The oracle runs without gradients, on the device of the scores. `sparsemap` calls it about as
    often as its result has structures. A batched oracle is called once per round, for all instances
    that have not converged.

    >>> def best_half(scores):  # of four entries the two first or the two last
    ...     first = scores[:2].sum() >= scores[2:].sum()
    ...     return torch.tensor([1.0, 1.0, 0.0, 0.0] if first else [0.0, 0.0, 1.0, 1.0])
    >>> from fenchel import map_inference
    >>> map_inference(Custom((4,), best_half), torch.tensor([1.0, 2.0, 0.0, 4.0])).indicator
    tensor([0., 0., 1., 1.])
    """

    name: ClassVar[str] = "custom"
    oracle_name: ClassVar[str] = "oracle"

    def __init__(
        self,
        shape: tuple[int, ...],
        oracle: Callable[..., Any],
        batched: bool = False,
        *,
        extra_shape: tuple[int, ...] | None = None,
        lengths_of_dims: tuple[int, ...] = (),
    ) -> None:
        for name, value in (("shape", shape), ("extra_shape", extra_shape)):
            if value is None and name == "extra_shape":
                continue
            if not isinstance(value, tuple):
                raise TypeError(f"`{name}` must be a tuple, got {_checks.type_name(value)}.")
            for size in value:
                _checks.check_size(name, size)
        if not callable(oracle):
            raise TypeError(f"`oracle` must be a function, got {_checks.type_name(oracle)}.")
        self._shape = shape
        self.oracle = oracle
        self.batched = batched
        self.extra_shape = extra_shape
        self.extra_names = () if extra_shape is None else ("extra_scores",)  # type: ignore[misc]
        self.lengths_of_dims = lengths_of_dims  # type: ignore[misc]
        self._max_lengths = _bound_lengths(shape, lengths_of_dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def max_lengths(self) -> tuple[int, ...]:
        return self._max_lengths

    def num_extra_dims(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        assert self.extra_shape is not None
        return check_extra_dims(self.extra_names[position], shape, [self.extra_shape], batch)

    @torch.no_grad()
    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        given = [scores.clone()]  # a function may work in place
        if self.extra_shape is not None:
            zeros = scores.new_zeros(len(scores), *self.extra_shape)
            given.append(zeros if extra_scores is None else zeros + extra_scores)
        if not self.batched:
            return self._argmax_of_each(given, lengths)
        if not self.max_lengths:
            return self.oracle(*given)
        if lengths is None:
            lengths = torch.tensor(self.max_lengths, device=scores.device).repeat(len(scores), 1)
        inside = self.length_mask(lengths)
        given[0] = torch.where(inside, given[0], -torch.inf)
        found = self.oracle(*given, lengths.squeeze(1) if len(self.max_lengths) == 1 else lengths)
        indicator = found[0] if isinstance(found, tuple) else found
        check_indicators("oracle", indicator, scores.shape)
        check_zeros_behind("oracle", indicator, inside)
        return found

    def _argmax_of_each(self, given: list[Tensor], lengths: Tensor | None) -> Any:
        """The best structures of a batch by an oracle for one."""
        indicators = torch.zeros_like(given[0])
        extra = torch.zeros_like(given[-1])
        sizes = None if lengths is None else lengths.tolist()
        for b, (scores, *rest) in enumerate(zip(*given, strict=True)):
            corner = (slice(None),)
            if sizes is not None:
                corner = tuple(slice(sizes[b][k]) for k in self.lengths_of_dims)
            found = self.oracle(scores[corner], *rest)
            if rest:
                found, extra[b] = check_pair("oracle", found, rest[0].shape)
            check_indicators("oracle", found, scores[corner].shape)
            indicators[b][corner] = found.to(indicators)
        return (indicators, extra) if self.extra_shape is not None else indicators

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        def best(scores: Tensor) -> Tensor:
            vertices = scores.new_tensor(EXAMPLE)
            return vertices[(scores @ vertices.T).argmax(-1)]

        yield cls((3,), best)
        yield cls((3,), best, batched=True)

    def __repr__(self) -> str:
        extra = "" if self.extra_shape is None else f", extra_shape={self.extra_shape}"
        sizes = f", lengths_of_dims={self.lengths_of_dims}" if self.lengths_of_dims else ""
        return f"Custom({self.shape}, {self.oracle!r}, batched={self.batched}{extra}{sizes})"


def _bound_lengths(shape: tuple[int, ...], lengths_of_dims: Any) -> tuple[int, ...]:
    """The upper bound of each of the lengths."""
    if not isinstance(lengths_of_dims, tuple):
        found = _checks.type_name(lengths_of_dims)
        raise TypeError(f"`lengths_of_dims` must be a tuple, got {found}.")
    for number in lengths_of_dims:
        _checks.check_size("lengths_of_dims", number, minimum=0)
    bounds = {}
    for number, size in zip(lengths_of_dims, shape, strict=False):
        if bounds.setdefault(number, size) != size:
            raise ValueError(
                f"`lengths_of_dims` must bound dimensions of one size by the same length, got "
                f"{lengths_of_dims} for the shape {shape}."
            )
    if len(lengths_of_dims) > len(shape) or sorted(bounds) != list(range(len(bounds))):
        raise ValueError(
            "`lengths_of_dims` must number lengths from 0, for at most as many dimensions as "
            f"`shape` has, {len(shape)}; got {lengths_of_dims}."
        )
    return tuple(bounds[number] for number in range(len(bounds)))
