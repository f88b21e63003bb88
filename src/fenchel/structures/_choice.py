"""One of d entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ..ops._structure import logsumexp
from ..ops.entmax import entmax
from ._projection import with_derivative
from ._vector import VectorStructure, mask_rows


@final
@dataclass(frozen=True)
class Choice(VectorStructure):
    """One of d entries.

    The scores are (d,). A code is the index of the entry, (1,). Everything has a closed form on
    every device: the best entry is the largest, marginals are softmax, and SparseMAP is sparsemax.

    Args:
        d: the number of entries, or the largest in a ragged batch.

    >>> from fenchel import map_inference
    >>> map_inference(Choice(3), torch.tensor([0.5, 2.0, 1.0])).codes
    tensor([1])
    """

    name: ClassVar[str] = "choice"
    options_dim: ClassVar[int | None] = -1

    @property
    def positions(self) -> int:
        return 1

    @property
    def oracle(self) -> str:
        return "choice"

    def option(self, extra_scores: Tensor | None) -> int:
        return 0

    def map_operator(self) -> Callable[..., Any]:
        return _best

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        return logsumexp(mask_rows(scores, lengths))

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        scores = mask_rows(scores, lengths)
        empty = (scores == -torch.inf).all(1, keepdim=True)
        return torch.where(empty, 0.0, torch.where(empty, 0.0, scores).softmax(1)), None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = mask_rows(scores, lengths)
        return with_derivative(entmax(rows.detach(), 2.0), rows, fixed_sum=True)


def _best(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The MAP operator; see `ops._structure.declare_map`."""
    value, code = mask_rows(scores, lengths).double().max(1, keepdim=True)
    return torch.where(value > -torch.inf, code, -1).int(), value.squeeze(1)
