"""Pairs of sentences with labels: SICK's summary and SNLI's lines of JSON."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..runs import padded

LABELS = ("entailment", "neutral", "contradiction")
UNKNOWN = 1
"""Words are numbered from 2; 0 is padding."""


class Pair(NamedTuple):
    """A premise, a hypothesis and the label's place in `LABELS`."""

    premise: list[str]
    hypothesis: list[str]
    label: int


class Batch(NamedTuple):
    """Pairs as numbers."""

    premise: Tensor
    """(B, m)"""
    premise_lengths: Tensor
    hypothesis: Tensor
    """(B, n)"""
    hypothesis_lengths: Tensor
    labels: Tensor

    def mask(self) -> Tensor:
        """(B, m, n): true where both words are there."""
        return (self.premise > 0).unsqueeze(2) & (self.hypothesis > 0).unsqueeze(1)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file: SNLI's format if it ends in .jsonl, else SICK's.

    Pairs that the annotators did not agree on, whose label is "-", are left out.

    Raises:
        ValueError: for a line with a missing field or an unknown label, with its number.
    """
    rows = _snli(path) if path.suffix == ".jsonl" else _sick(path)
    pairs = []
    for number, (label, *sentences) in rows:
        if label == "-":
            continue
        if label not in LABELS or not all(sentences):
            raise ValueError(
                f"{path.name}, line {number}: expected two sentences and one of {LABELS}, got "
                f"{label!r} and {sentences}."
            )
        pairs.append(Pair(sentences[0], sentences[1], LABELS.index(label)))
    return pairs


def _sick(path: Path) -> Iterator[tuple[int, tuple]]:
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(
            csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 2
        ):
            label = (row.get("entailment_judgment") or row.get("entailment_label") or "").lower()
            sentences = (_words(row.get(name) or "") for name in ("sentence_A", "sentence_B"))
            yield number, (label, *sentences)


def _snli(path: Path) -> Iterator[tuple[int, tuple]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            row = json.loads(line)
            parsed = (row.get(f"sentence{side}_binary_parse") for side in (1, 2))
            plain = (row.get(f"sentence{side}") or "" for side in (1, 2))
            sentences = (
                re.sub(r"[()]", " ", parse).lower().split() if parse else _words(sentence)
                for parse, sentence in zip(parsed, plain, strict=True)
            )
            yield number, (row.get("gold_label") or "", *sentences)


def _words(sentence: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", sentence.lower())


class Vocabulary:
    """Numbers for words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._places = {word: place for place, word in enumerate(self.words, UNKNOWN + 1)}

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Vocabulary:
        """That of some pairs, in the order of frequency."""
        counts = Counter(word for pair in pairs for word in pair.premise + pair.hypothesis)
        return cls(sorted(counts, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self.words) + UNKNOWN + 1

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        premise = [self._numbers(pair.premise) for pair in pairs]
        hypothesis = [self._numbers(pair.hypothesis) for pair in pairs]
        lengths = [torch.tensor([len(row) for row in rows]) for rows in (premise, hypothesis)]
        labels = torch.tensor([pair.label for pair in pairs])
        return Batch(padded(premise), lengths[0], padded(hypothesis), lengths[1], labels)

    def _numbers(self, words: Sequence[str]) -> list[int]:
        return [self._places.get(word, UNKNOWN) for word in words]

    def vectors(self, path: Path) -> Tensor:
        """Word vectors (len(self), d) from a text file, a word and d numbers a line, as GloVe's;
        small random ones for words that the file has not, zeros for padding.

        Raises:
            ValueError: if no word of the vocabulary is in the file.
        """
        found: dict[int, Tensor] = {}
        with path.open(encoding="utf-8") as file:
            for line in file:
                word, _, numbers = line.rstrip().partition(" ")
                if word in self._places:
                    found[self._places[word]] = torch.tensor([float(x) for x in numbers.split()])
        if not found:
            raise ValueError(f"{path.name} must hold vectors of words of the data; found none.")
        vectors = 0.1 * torch.randn(len(self), len(next(iter(found.values()))))
        vectors[0] = 0
        vectors[list(found)] = torch.stack(list(found.values()))
        return vectors
