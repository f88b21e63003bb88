"""One of d entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ..ops._structure import logsumexp
from ..ops.entmax import entmax
from ._base import AbstractStructure
from ._coded import entries
from ._projection import follow
from ._vector import VectorStructure


@final
@dataclass(frozen=True)
class Choice(VectorStructure):
    """One of d entries.

    The scores are (d,). A code is the place of the entry, (1,). All is in closed form on every
    device: the best entry is the largest, marginals are softmax, and SparseMAP is sparsemax.

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

    def parts(self, codes: Tensor) -> Tensor:
        return codes

    def codes(self) -> Tensor:
        return torch.arange(self.d).unsqueeze(1)

    def log_partition(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        return logsumexp(entries(scores, lengths, -torch.inf))

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        scores = entries(scores, lengths, -torch.inf)
        none = (scores == -torch.inf).all(1, keepdim=True)
        return torch.where(none, 0.0, torch.where(none, 0.0, scores).softmax(1)), None

    def project(self, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows = entries(scores, lengths, -torch.inf)
        return follow(entmax(rows, 2.0), rows, bound=True)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls(1)
        yield cls(4)


def _best(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The MAP operator; see `ops._structure.declare_map`."""
    value, code = entries(scores, lengths, -torch.inf).double().max(1, keepdim=True)
    return torch.where(value > -torch.inf, code, -1).int(), value.squeeze(1)
