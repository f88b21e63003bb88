"""Models small enough to enumerate: tables of sparse probabilities that depend on the prefix."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from fenchel.seq2seq import Hypothesis, Result, Vocabulary
from fenchel.seq2seq.data._vocabulary import BOS, EOS, content_ids
from fenchel.seq2seq.models._ensemble import ROUNDING

FIRST = 4
"""The first token that is not special."""


class Table:
    """Random sparse distributions over the next token, one for each input and prefix.

    Every prefix of `depth` tokens ends, unless `depth` is None.

    Args:
        seed: with the input's first token, of the distributions.
        classes: size of the vocabulary.
        depth: the most tokens.
        support: the most tokens of nonzero probability, the end included.
    """

    def __init__(self, seed: int, classes: int = 8, depth: int | None = 4, support: int = 3):
        self.seed, self.classes, self.depth, self.support = seed, classes, depth, support
        self.steps: list[int] = []

    def row(self, item: int, prefix: tuple[int, ...]) -> list[float]:
        """The probabilities after a prefix: multiples of 1/64, so that they sum to one exactly."""
        p = [0.0] * self.classes
        if self.depth is not None and len(prefix) >= self.depth:
            p[EOS] = 1.0
            return p
        draw = random.Random(repr((self.seed, item, prefix)))
        size = draw.randint(1, self.support)
        tokens = draw.sample([EOS, *range(FIRST, self.classes)], min(size, self.classes - FIRST))
        ends = sorted(draw.sample(range(1, 64), len(tokens) - 1))
        for token, low, high in zip(tokens, [0, *ends], [*ends, 64], strict=True):
            p[token] = (high - low) / 64
        return p

    def everything(self, item: int) -> dict[tuple[int, ...], float]:
        """Every output of nonzero probability, by brute force."""
        found: dict[tuple[int, ...], float] = {}
        stack: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        while stack:
            prefix, p = stack.pop()
            for token, q in enumerate(self.row(item, prefix)):
                if q and token == EOS:
                    found[prefix] = p * q
                elif q:
                    stack.append(((*prefix, token), p * q))
        return found

    def start(self, source: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        return {"item": source[:, 0], "prefix": source[:, :0]}

    def step(self, state: dict[str, Tensor], tokens: Tensor):
        self.steps.append(len(tokens))
        prefix = state["prefix"]
        if not (tokens == BOS).all():
            prefix = torch.cat([prefix, tokens[:, None]], 1)
        prefixes = [tuple(row) for row in prefix.tolist()]
        pairs = zip(state["item"].tolist(), prefixes, strict=True)
        rows = [self.row(item, each) for item, each in pairs]
        scores = torch.tensor(rows, device=tokens.device)
        attention = torch.full_like(scores[:, None, :3], prefix.shape[1])
        return scores, attention, {"item": state["item"], "prefix": prefix}

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores


class Rounded(Table):
    """A table in another batch: every row is off by as much as rounding may be."""

    def row(self, item, prefix):
        row = super().row(item, prefix)
        draw = random.Random(repr((self.seed, item, prefix, "rounded")))
        shift = ROUNDING * torch.finfo(torch.float32).eps
        here = draw.choice([token for token, p in enumerate(row) if p])
        there = draw.choice([EOS, *range(FIRST, self.classes)])  # which may have been zero
        row[here] -= shift
        row[there] += shift
        return row


class Mean:
    """The distributions of an ensemble of tables, by brute force."""

    def __init__(self, tables: list[Table]) -> None:
        self.tables = tables

    def row(self, item: int, prefix: tuple[int, ...]) -> list[float]:
        columns = zip(*(table.row(item, prefix) for table in self.tables), strict=True)
        return [math.fsum(column) / len(self.tables) for column in columns]

    everything = Table.everything


class Pieces(Vocabulary):
    """A vocabulary of pieces, put together to texts without a mark between them.

    Args:
        pieces: those of the tokens from `FIRST` on.
        is_prefix_monotone: what it says of itself.
    """

    is_prefix_monotone = True

    def __init__(self, pieces: list[str], is_prefix_monotone: bool = True) -> None:
        self.pieces = ["", "", "", "?", *pieces]
        self.is_prefix_monotone = is_prefix_monotone

    @property
    def size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(letter) for letter in text]

    def tokens(self, ids) -> list[str]:
        return [self.pieces[index] for index in ids]

    def decode(self, ids) -> str:
        return "".join(self.tokens(content_ids(ids)))

    def to_json(self):
        return {"pieces": self.pieces}


def spelling(truth: dict[tuple[int, ...], float], vocabulary: Vocabulary) -> dict[str, float]:
    """The probability of every text, by brute force over all sequences."""
    texts: dict[str, float] = {}
    for tokens, p in truth.items():
        text = vocabulary.decode(tokens)
        texts[text] = texts.get(text, 0.0) + p
    return texts


def inputs(*items: int) -> tuple[Tensor, Tensor]:
    """A batch whose first tokens are these."""
    source = torch.tensor([[item, 5, 6] for item in items])
    return source, torch.full((len(items),), 3)


def check_claims(
    result: Result,
    truth: dict[tuple[int, ...], float],
    max_length: int,
    vocabulary: Vocabulary | None = None,
) -> None:
    """Nothing that a result says is false, of sequences or of the texts that they spell."""
    finished = [each for each in result.hypotheses if each.finished]
    logs = [each.log_probability for each in result.hypotheses]
    assert logs == sorted(logs, reverse=True)

    def read(each: Hypothesis):
        return vocabulary.decode(each.tokens) if vocabulary else each.tokens

    texts = spelling(truth, vocabulary) if vocabulary else truth
    assert len({read(each) for each in result.hypotheses}) == len(result.hypotheses)
    for each in finished:
        check_sequences(each, truth, max_length)
        assert {read(each)} | {read(other) for other in each.others} == {read(each)}
        assert each.probability <= texts[read(each)] * (1 + 1e-9)
        assert vocabulary or each.probability == pytest.approx(texts[read(each)], rel=1e-9)
    returned = {read(each) for each in finished}
    others = [p for text, p in texts.items() if text not in returned]
    assert max(others, default=0.0) <= result.bound * (1 + 1e-9)
    assert result.mass == pytest.approx(sum(each.probability for each in finished), abs=1e-9)
    for each in finished:
        assert texts[read(each)] <= each.probability + 1 - result.mass + 1e-9
    if result.exact:
        assert texts[read(finished[0])] >= max(texts.values()) * (1 - 1e-12)
    if result.complete:
        assert returned == texts.keys()
        for each in finished:
            assert each.probability == pytest.approx(texts[read(each)], rel=1e-9)
        assert result.mass == pytest.approx(1, abs=1e-9)
        assert result.exact
        assert result.bound == 0
    if result.limited:
        assert not result.complete
        assert max(map(len, truth)) > max_length


def check_allowed_claims(
    result: Result,
    truth: dict[tuple[int, ...], float],
    max_length: int,
    vocabulary: Vocabulary | None = None,
    power: float = 0.0,
) -> None:
    """Nothing that a result under a constraint says about the allowed outputs is false."""
    texts = spelling(truth, vocabulary) if vocabulary else truth

    def read(each: Hypothesis):
        return vocabulary.decode(each.tokens) if vocabulary else each.tokens

    finished = [each for each in result.hypotheses if each.finished]
    scores = [each.score(power) for each in finished]
    assert scores == sorted(scores, reverse=True)
    for each in finished:
        check_sequences(each, truth, max_length)
    returned = {read(each) for each in finished}
    others = [p for text, p in texts.items() if text not in returned]
    assert max(others, default=0.0) <= result.bound * (1 + 1e-9)
    if result.complete:
        assert returned == texts.keys()
        assert result.mass == pytest.approx(sum(texts.values()), abs=1e-9)
        assert result.exact
        assert result.bound == 0
    if result.exact and power and texts:
        tokens = {text: [] for text in texts}
        for y, p in truth.items():
            tokens[vocabulary.decode(y) if vocabulary else y].append((p, -len(y)))
        sizes = {text: 1 - max(found)[1] for text, found in tokens.items()}
        best = [
            math.log(p) / sizes[text] ** power
            for text, p in texts.items()
            if sizes[text] <= max_length + 1
        ]
        assert not best or scores[0] >= max(best) - 1e-9
    elif result.exact and texts:
        assert texts[read(finished[0])] >= max(texts.values()) * (1 - 1e-12)
    if not texts:
        assert not finished


def check_sequences(
    found: Hypothesis, truth: dict[tuple[int, ...], float], max_length: int
) -> None:
    """The sequences of a text have the probabilities that they have, and no others."""
    chances = [math.prod(each.probabilities) for each in (found, *found.others)]
    assert chances == sorted(chances, reverse=True)
    assert len({each.tokens for each in (found, *found.others)}) == len(chances)
    assert found.probability == pytest.approx(sum(chances), rel=1e-9)
    for each, p in zip((found, *found.others), chances, strict=True):
        assert p == pytest.approx(truth[each.tokens], rel=1e-9)
        assert len(each.probabilities) == len(each.tokens) + 1
        assert len(each.tokens) <= max_length
