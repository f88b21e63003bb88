"""A structure of one's own, from a function that finds the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import _checks
from ._base import AbstractStructure


@final
@dataclass(frozen=True, eq=False)
class Custom(AbstractStructure):
    """Any structure whose best one a Python function finds.

    Args:
        of_shape: the shape of the scores of one instance.
        oracle: from scores of that shape, float32 or float64, to the indicator of the best
            structure, a tensor like them, mostly of zeros and ones.
        batched: whether it takes, and returns, a batch (B, *of_shape) at once.
        all_members: the indicators (K, *of_shape) of all structures, for tests.

    >>> def best_half(scores):  # of four entries the two first or the two last
    ...     first = scores[:2].sum() >= scores[2:].sum()
    ...     return torch.tensor([1.0, 1.0, 0.0, 0.0] if first else [0.0, 0.0, 1.0, 1.0])
    >>> from fenchel import map_inference
    >>> map_inference(Custom((4,), best_half), torch.tensor([1.0, 2.0, 0.0, 4.0])).indicator
    tensor([0., 0., 1., 1.])
    """

    name: ClassVar[str] = "custom"

    of_shape: tuple[int, ...]
    oracle: Callable[[Tensor], Tensor]
    batched: bool = False
    all_members: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.of_shape, tuple):
            raise TypeError(f"`of_shape` must be a tuple, got {_checks.kind(self.of_shape)}.")
        for side in self.of_shape:
            _checks.size("of_shape", side)
        if not callable(self.oracle):
            raise TypeError(f"`oracle` must be a function, got {_checks.kind(self.oracle)}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of_shape

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Any:
        with torch.no_grad():
            scores = scores.clone()  # a function may work in place
            if self.batched:
                return self.oracle(scores)
            found = [self.oracle(instance) for instance in scores]
            for indicator in found:
                _checks.indicators(indicator, scores.shape[1:])
            return torch.stack(found) if found else torch.zeros_like(scores)

    def members(self) -> Tensor:
        if self.all_members is None:
            raise NotImplementedError("this structure does not know its members.")
        return self.all_members

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        table = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 2.0]]).double()

        def best(scores: Tensor) -> Tensor:
            return table.to(scores)[(scores @ table.to(scores).T).argmax(-1)]

        yield cls((3,), best, all_members=table)
        yield cls((3,), best, batched=True, all_members=table)
