"""A structure of one's own, from a function that finds the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ._base import AbstractStructure
from ._checks import check_indicators

EXAMPLE = ((1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 2.0))
"""The vertices of the examples."""


@final
class Custom(AbstractStructure):
    """Any structure whose best one a Python function finds.

    Args:
        shape: the shape of the scores of one instance.
        oracle: from scores of that shape, float32 or float64, to the indicator of the best
            structure, a tensor of that shape, mostly of zeros and ones.
        batched: whether the oracle takes and returns a batch (B, *shape).

    >>> def best_half(scores):  # of four entries the two first or the two last
    ...     first = scores[:2].sum() >= scores[2:].sum()
    ...     return torch.tensor([1.0, 1.0, 0.0, 0.0] if first else [0.0, 0.0, 1.0, 1.0])
    >>> from fenchel import map_inference
    >>> map_inference(Custom((4,), best_half), torch.tensor([1.0, 2.0, 0.0, 4.0])).indicator
    tensor([0., 0., 1., 1.])
    """

    name: ClassVar[str] = "custom"

    def __init__(
        self, shape: tuple[int, ...], oracle: Callable[[Tensor], Tensor], batched: bool = False
    ) -> None:
        if not isinstance(shape, tuple):
            raise TypeError(f"`shape` must be a tuple, got {_checks.type_name(shape)}.")
        for size in shape:
            _checks.check_size("shape", size)
        if not callable(oracle):
            raise TypeError(f"`oracle` must be a function, got {_checks.type_name(oracle)}.")
        self._shape = shape
        self.oracle = oracle
        self.batched = batched

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        with torch.no_grad():
            scores = scores.clone()  # a function may work in place
            if self.batched:
                return self.oracle(scores)
            found = [self.oracle(instance) for instance in scores]
            for indicator in found:
                check_indicators(indicator, scores.shape[1:])
            return torch.stack(found) if found else torch.zeros_like(scores)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        def best(scores: Tensor) -> Tensor:
            vertices = scores.new_tensor(EXAMPLE)
            return vertices[(scores @ vertices.T).argmax(-1)]

        yield cls((3,), best)
        yield cls((3,), best, batched=True)

    def __repr__(self) -> str:
        return f"Custom({self.shape}, {self.oracle!r}, batched={self.batched})"
