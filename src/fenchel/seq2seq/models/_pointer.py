"""Copying: scores of the source's positions, beside those of the vocabulary's tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...mappings import AbstractMapping
from ..data._copying import NOT_COPIED, CopyingSource
from ..data._vocabulary import EOS, PAD, UNK
from ._state import State


class Pointer(nn.Module):
    """The second half of the actions of a model that copies, and what all actions give together.

    An action writes a token of the vocabulary, or copies the token at a position of the source:

        θ_w = the output layer's score,   θ_i = oᵀ W h_i / √H + gᵀo + c

    for a decoder's vector o and an encoder's output h_i. One mapping turns them all into
    probabilities. The probability of a token is that of all actions that give it.

    Args:
        hidden: H.
        source: the vocabulary, which says what is copied as what.
        size: V, the size of the target vocabulary.
        mapping: of the output.
    """

    known_ids: Tensor

    def __init__(
        self, hidden: int, source: CopyingSource, size: int, mapping: AbstractMapping
    ) -> None:
        super().__init__()
        self.size, self.source_size, self.mapping = size, source.size, mapping
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, 1)
        self.register_buffer("known_ids", torch.tensor(source.copy_ids()), persistent=False)

    def copy_ids(self, source: Tensor) -> Tensor:
        """The id with which each token of sources (B, S) is copied, or `NOT_COPIED`."""
        is_known = source < self.source_size
        known = self.known_ids[torch.where(is_known, source, PAD)]
        return torch.where(is_known, known, source - self.source_size)

    def start(self, memory: Tensor, source: Tensor) -> State:
        """What scores and probabilities need, of the memory (B, S, H) and the source (B, S)."""
        return {"pointer_keys": self.key(memory), **self.places(source)}

    def places(self, source: Tensor) -> State:
        """What probabilities need: the ids and the columns, (B, S), of what is copied."""
        ids = self.copy_ids(source)
        first = first_places(ids)
        columns = torch.where(ids < self.size, ids.clamp(min=PAD), self.size + first)
        return {"copy_ids": ids, "copy_columns": columns}

    def scores(self, state: State, vectors: Tensor) -> Tensor:
        """Scores (B, T, S) of copying, for vectors (B, T, H); −inf where nothing is copied."""
        keys = state["pointer_keys"]
        scores = vectors @ keys.transpose(1, 2) / math.sqrt(keys.shape[-1]) + self.gate(vectors)
        return scores.masked_fill((state["copy_ids"] == NOT_COPIED).unsqueeze(1), -torch.inf)

    def merge(self, p: Tensor, state: State) -> Tensor:
        """The probabilities of tokens from those p (B, ..., V + S) of actions.

        Column V + i is for the token at position i of the source if that is not in the vocabulary,
        and is not at an earlier position; else it is zero.
        """
        generated, copied = p[..., : self.size], p[..., self.size :]
        columns = _beside(state["copy_columns"], copied).expand_as(copied)
        empty = torch.zeros_like(copied)
        return torch.cat([generated, empty], -1).scatter_add(-1, columns, copied)

    def columns(self, state: State, tokens: Tensor) -> Tensor:
        """The columns of tokens (B, ...) in what `merge` returns; of one that cannot be copied, the
        column of an unknown token."""
        matches = _beside(state["copy_ids"], tokens.unsqueeze(-1)) == tokens.unsqueeze(-1)
        copied = torch.where(matches.any(-1), self.size + matches.int().argmax(-1), UNK)
        return torch.where(tokens < self.size, tokens, copied)

    def ids(self, state: State, rows: Tensor, columns: Tensor) -> Tensor:
        """The tokens (N,) of these columns (N,) of these rows (N,) of `merge`'s result."""
        positions = (columns - self.size).clamp(min=0)
        return torch.where(columns < self.size, columns, state["copy_ids"][rows, positions])

    def copied_tokens(self, source: Tensor) -> Tensor:
        """The tokens (B, S) of the columns behind the vocabulary's in `merge`'s result, or
        `NOT_COPIED` where a column is always zero."""
        places = self.places(source)
        own = self.size + torch.arange(source.shape[1], device=source.device)
        return places["copy_ids"].where(places["copy_columns"] == own, NOT_COPIED)

    def losses(self, scores: Tensor, state: State, target: Tensor, smoothing: float) -> Tensor:
        """max_Ω(θ) − max_Ω(θ of the actions that give the target), (B, T), and zero at padding.

        With smoothing ε it is (1 − ε) times that, plus ε times the loss of the uniform
        distribution over the vocabulary.

        Args:
            scores: θ of all actions, (B, T, V + S).
            state: of `start` or `places`.
            target: tokens (B, T); one that cannot be copied counts as unknown.
            smoothing: ε.
        """
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        kept = target != PAD
        column = self.columns(state, torch.where(kept, target, EOS)).unsqueeze(-1)
        is_known = column < self.size
        generate = scores.gather(-1, torch.where(is_known, column, EOS))
        generate = generate.masked_fill(~is_known, -torch.inf)
        gives = _beside(state["copy_columns"], scores) == column
        gives = gives & _beside(state["copy_ids"] != NOT_COPIED, scores)
        copy = scores[..., self.size :].masked_fill(~gives, -torch.inf)
        best, right = self.mapping.max(scores), self.mapping.max(torch.cat([generate, copy], -1))
        losses = (best - right).clamp(min=0)  # rounding may take it below
        if smoothing:
            written = scores[..., EOS : self.size]  # without padding and begin, which are before
            omega = -self.mapping.max(written.new_zeros(written.shape[-1]))
            uniform = best - written.mean(-1) + omega
            losses = (1 - smoothing) * losses + smoothing * uniform
        return torch.where(kept, losses, 0.0)


def _beside(values: Tensor, like: Tensor) -> Tensor:
    """Values (B, S) with dimensions of size one before the last, as many as another tensor has."""
    return values.view(values.shape[0], *[1] * (like.ndim - 2), values.shape[1])


def first_places(ids: Tensor) -> Tensor:
    """Where each of the ids (B, S) stands first in its row.

    Sorting takes memory in proportion to S. Programs that are exported compare all pairs, since
    ONNX has no such sort.

    >>> first_places(torch.tensor([[7, 5, 7, 5, 9]]))
    tensor([[0, 1, 0, 1, 4]])
    """
    if torch.compiler.is_compiling():
        return (ids.unsqueeze(2) == ids.unsqueeze(1)).int().argmax(2)
    found, order = ids.sort(dim=1, stable=True)
    return order.gather(1, torch.searchsorted(found, ids))
