"""The model: an encoder and a decoder of either architecture, and the output layer."""

from __future__ import annotations

from torch import Tensor, nn

from ... import _checks
from ..config._schema import ModelConfig
from ..data._batches import Batch
from ..data._vocabulary import Vocabulary
from ._lstm import Recurrent
from ._output import Output
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
        self.config, self.source, self.target = config, source, target
        core = Recurrent if config.architecture == "lstm" else Transformer
        self.core = core(config, source.size, target.size)
        tied = self.core.target_weight if config.tie_embeddings else None
        self.output = Output(config.hidden, target.size, config.output.build(), tied)

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """Reads the sources.

        Args:
            source: token ids, (B, S), padded with 0.
            lengths: the number of tokens in each row that are not padding, (B,).
        Returns:
            The state that a step needs: tensors and caches by name, with the items as first
            dimension. `index_select` on each reorders or repeats items. A step does not change it.
        """
        return self.core.start(source, lengths)

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """Decodes one token.

        Args:
            state: from `start`, or from the last step.
            tokens: the last token of each item, (B,); the begin token at first.
        Returns:
            Scores of the next token (B, V), attention weights (B, heads, S) (the last layer's in
            the Transformer), and the next state.
        """
        vector, weights, state = self.core.step(state, tokens)
        return self.output(vector), weights, state

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of a given target, equal to those of one step after the other.

        Args:
            source, lengths: as for `start`.
            target_in: the begin token and the tokens after it, (B, T).
        Returns:
            Scores (B, T, V) and attention weights (B, T, heads, S).
        """
        vectors, weights = self.core(source, lengths, target_in, True)
        return self.output(vectors), weights

    def loss(self, batch: Batch, reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
        """The Fenchel-Young loss of the output mapping over the batch's target tokens.

        Args:
            batch: the pairs; `batch.count` tokens are predicted.
            reduction: "mean" or "sum" over the tokens.
            label_smoothing: as for `fenchel_young_loss`; padding and begin have no share.
        """
        _checks.check_choice("reduction", reduction, ("mean", "sum"))
        tokens, target = batch.target[:, :-1], batch.target[:, 1:]
        vectors, _ = self.core(batch.source, batch.source_lengths, tokens, False)
        return self.output.loss(vectors, target, reduction, label_smoothing)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The output mapping of scores (..., V), in at least float32, with exact zeros."""
        return self.output.probabilities(scores)
