"""Independent bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ._base import AbstractStructure
from ._coded import entries, inside
from ._projection import follow
from ._vector import VectorStructure


@final
@dataclass(frozen=True)
class Bits(VectorStructure):
    """Any subset of d entries.

    The scores are (d,). A code says of each entry whether it is chosen, 0 or 1. All is in closed
    form on every device: the best subset has the entries above zero, marginals are 1/(1 + exp(−θ)).

    Args:
        d: the number of entries, or the largest in a ragged batch.

    >>> from fenchel import marginals
    >>> marginals(Bits(2), torch.tensor([0.0, 2.0]))
    tensor([0.5000, 0.8808])
    """

    name: ClassVar[str] = "bits"

    @property
    def oracle(self) -> str:
        return "budget"

    def option(self, extra_scores: Tensor | None) -> int:
        return 2 * self.d

    def map_operator(self) -> Callable[..., Any]:
        return _best

    def parts(self, codes: Tensor) -> Tensor:
        return torch.where(codes == 1, torch.arange(codes.shape[-1], device=codes.device), -1)

    def codes(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(2), repeat=self.d)))

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        scores = entries(scores, lengths, -torch.inf)
        return -torch.nn.functional.logsigmoid(-scores).sum(1)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return entries(scores, lengths, -torch.inf).sigmoid(), None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = entries(scores, lengths, -torch.inf)
        return follow(rows.clamp(0, 1), rows, bound=False)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1)
        yield cls(4)


def _best(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The MAP operator; see `ops._structure.declare_map`."""
    scores = entries(scores, lengths, -torch.inf).double()
    chosen = scores > 0
    value = torch.where(chosen, scores, 0.0).sum(1)
    value = torch.where(scores[:, 0].isnan(), torch.nan, value)
    kept = inside(scores, lengths) & ~value.isnan().unsqueeze(1)
    return torch.where(kept, chosen.int(), -1), value
