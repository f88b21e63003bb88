"""Independent bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ._projection import with_derivative
from ._vector import VectorStructure, mask_rows, row_mask


@final
@dataclass(frozen=True)
class Bits(VectorStructure):
    """Any subset of d entries.

    The scores are (d,). A code has 1 for each entry that is chosen, else 0. Everything has a closed
    form on every device: the best subset has the entries above zero, and marginals are
    1/(1 + exp(−θ)).

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

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        scores = mask_rows(scores, lengths)
        return -torch.nn.functional.logsigmoid(-scores).sum(1)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return mask_rows(scores, lengths).sigmoid(), None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = mask_rows(scores, lengths)
        return with_derivative(rows.clamp(0, 1), rows, fixed_sum=False)


def _best(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The MAP operator; see `ops._structure.declare_map`."""
    scores = mask_rows(scores, lengths).double()
    chosen = scores > 0
    value = torch.where(chosen, scores, 0.0).sum(1)
    value = torch.where(scores[:, 0].isnan(), torch.nan, value)
    kept = row_mask(scores, lengths) & ~value.isnan().unsqueeze(1)
    return torch.where(kept, chosen.int(), -1), value
