"""The model: an encoder and a decoder of either architecture, and the output layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import _checks
from ..config._schema import ModelConfig
from ..data._batches import Batch
from ..data._copying import CopyingSource, copying
from ..data._vocabulary import PAD, UNK, Vocabulary
from ._lstm import Recurrent
from ._output import Output
from ._pointer import Pointer
from ._state import State
from ._transformer import Transformer


class Seq2Seq(nn.Module):
    """A sequence-to-sequence model whose attention and output are any registered mapping.

    Args:
        config: the architecture and the mappings.
        source, target: the vocabularies.

    `start` and `step` decode, `forward` scores a given target, `loss` trains. None of them
    synchronizes with the device, so CUDA graphs can capture them all.

    >>> from fenchel.seq2seq import ModelConfig
    >>> from fenchel.seq2seq.data._vocabulary import Words
    >>> words = Words(["ja", "nein"])
    >>> config = ModelConfig(hidden=4, embedding=3, attention="sparsemax", output="entmax")
    >>> model = Seq2Seq(config, words, words).eval()
    >>> source = torch.tensor([words.encode("ja nein ja")])
    >>> state = model.start(source, torch.tensor([3]))
    >>> scores, attention, state = model.step(state, torch.tensor([1]))
    >>> model.probabilities(scores).shape, attention.shape
    (torch.Size([1, 6]), torch.Size([1, 1, 3]))

    References: peters2019sparse.
    """

    def __init__(self, config: ModelConfig, source: Vocabulary, target: Vocabulary) -> None:
        super().__init__()
        if config.copy_source:
            source, target = copying(source, target)
        self.config, self.source, self.target = config, source, target
        core = Recurrent if config.architecture == "lstm" else Transformer
        self.core = core(config, source.size, target.size)
        tied = self.core.target_weight if config.tie_embeddings else None
        self.output = Output(config.hidden, target.size, config.output.build(), tied)
        self.pointer: Pointer | None = None
        if isinstance(source, CopyingSource):
            mapping = self.output.mapping
            self.pointer = Pointer(config.hidden, source, target.size, mapping)

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """Reads the sources.

        Args:
            source: token ids, (B, S), padded with 0.
            lengths: the number of tokens in each row that are not padding, (B,).
        Returns:
            The state that a step needs: tensors and caches by name, with the items as first
            dimension. `index_select` on each reorders or repeats items. A step does not change it.
        """
        if self.pointer is None:
            return self.core.start(source, lengths)[0]
        state, memory = self.core.start(_known(source, self.source.size), lengths)
        return {**state, **self.pointer.start(memory, source)}

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """Decodes one token.

        Args:
            state: from `start`, or from the last step.
            tokens: the last token of each item, (B,); the begin token at first.
        Returns:
            Scores of the next token (B, V), or of writing and copying it (B, V + S); attention
            weights (B, heads, S) (the last layer's in the Transformer), and the next state.
        """
        if self.pointer is None:
            vector, weights, state = self.core.step(state, tokens)
            return self.output(vector), weights, state
        vector, weights, state = self.core.step(state, _known(tokens, self.target.size))
        return self._actions(state, vector.unsqueeze(1)).squeeze(1), weights, state

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of a given target, equal to those of one step after the other.

        Args:
            source, lengths: as for `start`.
            target_in: the begin token and the tokens after it, (B, T).
        Returns:
            Scores (B, T, V), or (B, T, V + S) of a model that copies, and attention weights
            (B, T, heads, S).
        """
        if self.pointer is None:
            vectors, weights, _ = self.core(source, lengths, target_in, True)
            return self.output(vectors), weights
        state, vectors, weights = self._decode(source, lengths, target_in, True)
        return self._actions(state, vectors), weights

    def loss(self, batch: Batch, reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
        """The Fenchel-Young loss of the output mapping over the batch's target tokens.

        Args:
            batch: the pairs; `batch.count` tokens are predicted.
            reduction: "mean" or "sum" over the tokens.
            label_smoothing: as for `fenchel_young_loss`; padding and begin have no share.
        """
        _checks.check_choice("reduction", reduction, ("mean", "sum"))
        tokens, target = batch.target[:, :-1], batch.target[:, 1:]
        if self.pointer is None:
            vectors, _, _ = self.core(batch.source, batch.source_lengths, tokens, False)
            return self.output.loss(vectors, target, reduction, label_smoothing)
        state, vectors, _ = self._decode(batch.source, batch.source_lengths, tokens, False)
        scores = self._actions(state, vectors)
        total = self.pointer.losses(scores, state, target, label_smoothing).sum()
        return total / batch.count if reduction == "mean" else total

    def assess(self, scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """How well scores predict the target of a batch.

        Args:
            scores: as `forward` returns them for the batch, in at least float32.
            batch: the pairs.
        Returns:
            The summed loss; whether each target token is the most probable, (B, T), of any value at
            padding and false for unknown tokens, which have no text; the number of tokens of
            nonzero probability, (B, T).
        """
        target, p = batch.target[:, 1:], self.probabilities(scores)
        if self.pointer is None:
            loss = self.output.mapping.loss(scores, target, reduction="sum", ignore_index=PAD)
            return loss, (scores.argmax(-1) == target) & (target != UNK), (p > 0).sum(-1)
        places = self.pointer.places(batch.source)
        p, column = self.pointer.merge(p, places), self.pointer.columns(places, target)
        loss = self.pointer.losses(scores, places, target, 0.0).sum()
        return loss, (p.argmax(-1) == column) & (column != UNK), (p > 0).sum(-1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The output mapping of scores (..., V), in at least float32, with exact zeros. Those of a
        model that copies are of actions; `Pointer.merge` makes them those of tokens."""
        return self.output.probabilities(scores)

    def _decode(
        self, source: Tensor, lengths: Tensor, tokens: Tensor, need_weights: bool
    ) -> tuple[State, Tensor, Tensor]:
        """The pointer's state, and the vectors and weights of given tokens."""
        known = _known(source, self.source.size), lengths, _known(tokens, self.target.size)
        vectors, weights, memory = self.core(*known, need_weights)
        return self.pointer.start(memory, source), vectors, weights  # type: ignore[union-attr]

    def _actions(self, state: State, vectors: Tensor) -> Tensor:
        """The scores (B, T, V + S) of writing each token, and of copying each position."""
        copies = self.pointer.scores(state, vectors)  # type: ignore[union-attr]
        return torch.cat([self.output(vectors), copies], -1)


def _known(tokens: Tensor, size: int) -> Tensor:
    """Tokens for an embedding, in which those that are not in a vocabulary are unknown."""
    return torch.where(tokens < size, tokens, UNK)
