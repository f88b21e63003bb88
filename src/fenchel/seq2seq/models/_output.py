"""The output layer: scores of the target tokens, their probabilities, and the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...losses._fenchel_young import fenchel_young_loss
from ...mappings import AbstractMapping
from ..data._vocabulary import BOS, PAD


class Output(nn.Module):
    """A linear layer into the vocabulary, and a mapping of its scores.

    Padding and the begin token are never predicted: their scores are −inf.

    Args:
        hidden: the size of the input vectors.
        size: the size of the vocabulary.
        mapping: from scores to probabilities; its loss is the model's.
        weight: (size, hidden), of an embedding that the layer shares; None makes one.
    """

    score_mask: Tensor

    def __init__(
        self, hidden: int, size: int, mapping: AbstractMapping, weight: Tensor | None = None
    ) -> None:
        super().__init__()
        self.mapping = mapping
        if weight is None:
            weight = nn.Parameter(torch.empty(size, hidden).uniform_(-0.1, 0.1))
        self.weight, self.bias = weight, nn.Parameter(torch.zeros(size))
        score_mask = torch.zeros(size)
        score_mask[[PAD, BOS]] = -torch.inf
        self.register_buffer("score_mask", score_mask, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Scores (..., V) of vectors (..., hidden)."""
        return linear(vectors, self.weight, self.bias + self.score_mask)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The mapping of scores (..., V), in at least float32."""
        wide = torch.promote_types(scores.dtype, torch.float32)
        with torch.autocast(scores.device.type, enabled=False):
            return self.mapping(scores.to(wide))

    def loss(
        self, vectors: Tensor, target: Tensor, reduction: str, label_smoothing: float = 0.0
    ) -> Tensor:
        """The Fenchel-Young loss of vectors (B, T, hidden) and tokens (B, T) without padding."""
        vectors, target = vectors.flatten(0, 1), target.flatten()
        # On a GPU counting the tokens would synchronize; in compiled code it would break the graph.
        if vectors.device.type == "cpu" and not torch.compiler.is_compiling():
            kept = (target != PAD).nonzero().squeeze(1)
            vectors, target = vectors[kept], target[kept]
        return fenchel_young_loss(
            self.mapping,
            self(vectors),
            target,
            reduction=reduction,
            ignore_index=PAD,
            inplace=True,
            label_smoothing=label_smoothing,
        )
