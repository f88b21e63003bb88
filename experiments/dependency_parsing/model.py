"""The arc-factored parser: a bidirectional LSTM reads, a small network scores every arc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..recurrent import BidirectionalLSTM
from ..runs import padded
from .conllu import Sentence

UNKNOWN, ROOT = 1, 2
"""Words and tags are numbered from 3; 0 is padding."""


class Batch(NamedTuple):
    """Sentences, each after a root."""

    words: Tensor
    """(B, n + 1)"""
    tags: Tensor
    """(B, n + 1)"""
    lengths: Tensor
    """(B,): words, the root not counted"""
    trees: Tensor
    """(B, n): codes of `fenchel.DependencyTree`, −1 behind the last word"""


@dataclass(frozen=True)
class Vocabulary:
    """Numbers for words and tags, and how often each word was seen."""

    words: list[str]
    counts: list[int]
    tags: list[str]

    @classmethod
    def of(cls, sentences: Sequence[Sentence]) -> Vocabulary:
        """That of some sentences, in the order of frequency."""
        counts = Counter(_lookup_form(word) for sentence in sentences for word in sentence.words)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        tags = sorted({tag for sentence in sentences for tag in sentence.tags})
        return cls(ordered, [counts[word] for word in ordered], tags)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Encoder:
    """Turns sentences into batches."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.words = {word: place for place, word in enumerate(vocabulary.words, ROOT + 1)}
        self.tags = {tag: place for place, tag in enumerate(vocabulary.tags, ROOT + 1)}

    def __call__(self, sentences: Sequence[Sentence]) -> Batch:
        words = [
            [ROOT, *(self.words.get(_lookup_form(word), UNKNOWN) for word in sentence.words)]
            for sentence in sentences
        ]
        tags = [
            [ROOT, *(self.tags.get(tag, UNKNOWN) for tag in sentence.tags)]
            for sentence in sentences
        ]
        lengths = torch.tensor([len(sentence.words) for sentence in sentences])
        trees = padded((sentence.code for sentence in sentences), -1)
        return Batch(padded(words), padded(tags), lengths, trees)


class Parser(nn.Module):
    """Scores of all arcs of a sentence.

    The sizes are those of the paper, which follows Kiperwasser and Goldberg. In training a word
    seen c times is unknown with probability `dropout` / (`dropout` + c).
    """

    forget: Tensor

    def __init__(self, vocabulary: Vocabulary, dropout: float = 0.25, hidden: int = 100) -> None:
        super().__init__()
        self.words = nn.Embedding(len(vocabulary.words) + 3, 100, padding_idx=0)
        self.tags = nn.Embedding(len(vocabulary.tags) + 3, 25, padding_idx=0)
        self.reader = BidirectionalLSTM(125, 125, layers=2)
        self.head = nn.Linear(250, hidden)
        self.modifier = nn.Linear(250, hidden, bias=False)
        self.arc = nn.Linear(hidden, 1, bias=False)
        kept = [torch.inf] * 3 + [float(count) for count in vocabulary.counts]
        forget = dropout / (dropout + torch.tensor(kept))
        self.register_buffer("forget", forget, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """(B, n, n): entry (head, modifier), and on the diagonal the root as head."""
        words = batch.words
        if self.training:
            words = words.masked_fill(torch.rand(words.shape) < self.forget[words], UNKNOWN)
        inputs = torch.cat([self.words(words), self.tags(batch.tags)], -1)
        states = self.reader(inputs, batch.lengths + 1)
        pairs = self.head(states).unsqueeze(2) + self.modifier(states[:, 1:]).unsqueeze(1)
        arcs = self.arc(pairs.tanh()).squeeze(-1)
        return torch.diagonal_scatter(arcs[:, 1:], arcs[:, 0], dim1=1, dim2=2)


def _lookup_form(word: str) -> str:
    """A word as the vocabulary holds it: in lower case, and one entry for all numbers."""
    digits = word.replace(".", "").replace(",", "")
    return "<number>" if digits.isdigit() else word.lower()
