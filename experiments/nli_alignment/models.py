"""Two classifiers of pairs of sentences: ESIM, and one with a single attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fenchel import mappings

from ..recurrent import BidirectionalLSTM, run_packed
from .alignments import ALIGNMENTS, Aligned
from .data import LABELS, Batch

ATTENTIONS = ("softmax", "sparsemax", "fusedmax", "oscarmax")


def embedding(size: int, width: int, vectors: Tensor | None) -> nn.Embedding:
    """Trained embeddings, or given ones that stay as they are."""
    if vectors is None:
        return nn.Embedding(size, width, padding_idx=0)
    return nn.Embedding.from_pretrained(vectors, freeze=True, padding_idx=0)


class Esim(nn.Module):
    """Read both sentences, align their words, compare what is aligned, and read again.

    Args:
        size: of the vocabulary.
        hidden: of each direction of the LSTMs.
        alignment: a name in `ALIGNMENTS`.
        dropout: before and after reading.
        vectors: fixed word vectors (size, d), or None for trained ones.
    """

    def __init__(
        self, size: int, hidden: int, alignment: str, dropout: float, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.words = embedding(size, hidden, vectors)
        wide = 2 * hidden
        self.reader = BidirectionalLSTM(self.words.embedding_dim, hidden)
        self.align = ALIGNMENTS[alignment]()
        self.compare = nn.Sequential(nn.Linear(4 * wide, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.composer = BidirectionalLSTM(hidden, hidden)
        self.classify = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * wide, hidden),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(hidden, len(LABELS)),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> tuple[Tensor, Aligned]:
        """Scores of the labels (B, 3), and the alignment."""
        p, h = (self.dropout(self.words(side)) for side in (batch.premise, batch.hypothesis))
        p, h = read_both(self.reader, p, h, batch)
        aligned = self.align(p @ h.mT, batch)
        p, h = self._compared(p, aligned.rows @ h), self._compared(h, aligned.columns.mT @ p)
        p, h = read_both(self.composer, p, h, batch)
        pooled = [*pool(p, batch.premise_lengths), *pool(h, batch.hypothesis_lengths)]
        return self.classify(torch.cat(pooled, -1)), aligned

    def _compared(self, words: Tensor, others: Tensor) -> Tensor:
        """Words compared with what they are aligned with."""
        return self.compare(torch.cat([words, others, words - others, words * others], -1))


def read_both(
    network: BidirectionalLSTM, premise: Tensor, hypothesis: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """A recurrent network over both sentences at once: half the steps of one after the other."""
    size, m, n = len(premise), premise.shape[1], hypothesis.shape[1]
    wide = [
        functional.pad(side, (0, 0, 0, max(m, n) - side.shape[1])) for side in (premise, hypothesis)
    ]
    lengths = torch.cat([batch.premise_lengths, batch.hypothesis_lengths])
    states = network(torch.cat(wide), lengths)
    return states[:size, :m], states[size:, :n]


def pool(states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the maximum (B, d) of states (B, n, d) that are zero behind the last word."""
    behind = torch.arange(states.shape[1]) >= lengths.unsqueeze(1)
    maximum = states.masked_fill(behind.unsqueeze(-1), -torch.inf).amax(1)
    return states.sum(1) / lengths.unsqueeze(1), maximum


class AttentionClassifier(nn.Module):
    """Read the premise, then the hypothesis; look back at the premise once, and classify.

    Args:
        size, hidden, dropout, vectors: as for `Esim`.
        attention: the name of a mapping, one of `ATTENTIONS`.
    """

    def __init__(
        self, size: int, hidden: int, attention: str, dropout: float, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.words = embedding(size, hidden, vectors)
        width = self.words.embedding_dim
        self.premise = nn.GRU(width, hidden, batch_first=True)
        self.hypothesis = nn.GRU(width, hidden, batch_first=True)
        self.of_premise = nn.Linear(hidden, hidden, bias=False)
        self.of_hypothesis = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.attend = mappings.get(attention)
        self.join = nn.Linear(2 * hidden, hidden)
        self.classify = nn.Linear(hidden, len(LABELS))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> tuple[Tensor, Aligned]:
        """Scores of the labels (B, 3), and the weights of premise words as one column."""
        p, end = run_packed(
            self.premise, self.dropout(self.words(batch.premise)), batch.premise_lengths
        )
        read = self.dropout(self.words(batch.hypothesis))
        _, end = run_packed(self.hypothesis, read, batch.hypothesis_lengths, end)
        h = end[-1]
        pairs = self.of_premise(p) + self.of_hypothesis(h).unsqueeze(1)
        scores = self.score(pairs.tanh()).squeeze(-1)
        weights = self.attend(scores.masked_fill(batch.premise == 0, -torch.inf))
        looked = (weights.unsqueeze(1) @ p).squeeze(1)
        joined = self.join(torch.cat([looked, h], -1)).tanh()
        weights = weights.unsqueeze(2)
        return self.classify(self.dropout(joined)), Aligned(weights, weights)


MODELS = {"esim": (Esim, tuple(ALIGNMENTS)), "gru": (AttentionClassifier, ATTENTIONS)}
"""By name: the class, and what its alignment may be."""
