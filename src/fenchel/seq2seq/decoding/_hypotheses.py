"""What a search finds: hypotheses, their probabilities, and certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from typing_extensions import Self  # which torch itself needs


@dataclass(frozen=True)
class Hypothesis:
    """A text that a model may output, its probability, and the tokens that spell it.

    A text may be spelled by several sequences of tokens; its probability is the sum of theirs.

    Args:
        tokens: its most probable sequence, without the beginning and the end.
        log_probability: the logarithm of the text's probability: of all its sequences found.
        probabilities: of each token, and of the end, given the tokens before it.
        finished: false if the length limit ended the sequence; then it has no end, and its
            probability is that of a prefix.
        attention: (tokens and end, heads, source), if requested.
        others: the other sequences found that spell this text, the most probable first, each with
            its own probability.

    >>> one, two = Hypothesis((5, 6), math.log(0.5), (0.5, 1.0, 1.0)), Hypothesis((7,), -2, (0.1,))
    >>> one.probability, Hypothesis.of([one, two]).probability == 0.5 + math.exp(-2)
    (0.5, True)
    """

    tokens: tuple[int, ...]
    log_probability: float
    probabilities: tuple[float, ...]
    finished: bool = True
    attention: Tensor | None = field(default=None, repr=False, compare=False)
    others: tuple[Hypothesis, ...] = ()

    @property
    def probability(self) -> float:
        """The probability of the text: of `tokens` and all `others` together."""
        return math.exp(self.log_probability)

    def score(self, length_power: float) -> float:
        """The logarithm of the probability, divided by a power of the number of tokens and end."""
        length = len(self.tokens) + self.finished
        return self.log_probability / max(1, length) ** length_power

    @classmethod
    def of(cls, sequences: Sequence[Hypothesis]) -> Hypothesis:
        """The text that all these sequences spell, the most probable sequence first."""
        first, *others = sequences
        if not others:
            return first
        log = logsumexp([each.log_probability for each in sequences])
        return replace(first, log_probability=log, others=tuple(others))


def logsumexp(logs: Sequence[float]) -> float:
    """log Σ exp, without underflow.

    >>> logsumexp([-2000.0]), round(logsumexp([-2000.0, -2000.0]) + 2000, 3)
    (-2000.0, 0.693)
    """
    largest = max(logs)
    if len(logs) == 1 or largest == -math.inf:
        return largest
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


@dataclass(frozen=True)
class Result:
    """The texts found for one input, the most probable first, with two certificates.

    With `constraints` all of this is about the texts that they allow, whose probabilities together
    may be less than one; with `length_power` the first text is the one with the best score.

    Args:
        hypotheses: finished ones. If none finished within the length limit, they are prefixes.
        exact: whether it is proven that no text is more probable than the first.
        complete: whether it is proven that these are all texts of nonzero probability, with their
            whole probabilities, which then sum to one if there is no constraint.
        bound: an upper bound of the probability of any other text; zero if the search is complete.
        limited: whether the length limit ended a hypothesis that could have been one of these.

    >>> Result([Hypothesis((5,), math.log(0.75), (0.75, 1.0))], True, False, 0.25, False).mass
    0.75
    """

    hypotheses: list[Hypothesis]
    exact: bool
    complete: bool
    bound: float
    limited: bool

    @property
    def certificate(self) -> str:
        """The stronger certificate: "complete", "exact" or "none"."""
        return "complete" if self.complete else "exact" if self.exact else "none"

    @property
    def mass(self) -> float:
        """The probability of all finished hypotheses together."""
        return math.fsum(each.probability for each in self.hypotheses if each.finished)


@dataclass(frozen=True)
class Table:
    """A table: each field is a column, a tensor (N,)."""

    def __getitem__(self, index: Tensor | slice) -> Self:
        return type(self)(*(value[index] for value in vars(self).values()))

    def __add__(self, other: Self) -> Self:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(torch.cat(pair) for pair in pairs))

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class BackPointers:
    """The live sequences of one length, (R,) each, and the shorter ones that they extend.

    Args:
        parent: the row of the sequence without its last token, among the live ones of its length.
        token: the last token.
        probability: of the last token, given those before it.
        attention: (R, heads, S), to predict the next token.
    """

    parent: Tensor
    token: Tensor
    probability: Tensor
    attention: Tensor | None = None


@dataclass(frozen=True)
class Sequences(Table):
    """Sequences of tokens, (N,) each.

    Args:
        item: the input.
        log_p: the log-probability of the sequence.
        lower, upper: bounds of this log-probability in any other batch.
        parent: the row of the sequence without its last token, among the live ones of its length.
        token: the last token.
        probability: of the last token, given those before it.
    """

    item: Tensor
    log_p: Tensor
    lower: Tensor
    upper: Tensor
    parent: Tensor
    token: Tensor
    probability: Tensor


@dataclass(frozen=True)
class Ends(Sequences):
    """Finished sequences, or unfinished ones at the length limit.

    The last token of a finished sequence is its end. The `probability` of an unfinished one is NaN.

    Args:
        length: the number of tokens, without the end.
        text: the index of the text that the sequence spells, −1 while it is not known.
    """

    length: Tensor
    text: Tensor

    @classmethod
    def at(cls, length: int, sequences: Sequences) -> Self:
        """Sequences of `length` tokens and an end; their texts are not known yet."""
        lengths = torch.full_like(sequences.parent, length)
        return cls(**vars(sequences), length=lengths, text=torch.full_like(lengths, -1))


def _ancestors(history: list[BackPointers], length: Tensor, row: Tensor) -> Tensor:
    """The rows (N, max length + 1) of all prefixes of live sequences, from the empty one.

    Args:
        history: for each length from zero.
        length, row: of the sequences, (N,).
    """
    rows, max_length = row.clone(), int(length.max()) if len(length) else 0
    path = torch.zeros(max_length + 1, len(row), dtype=torch.int64, device=row.device)
    for step in range(max_length, -1, -1):
        path[step] = rows
        parent = history[step].parent
        before = parent[rows.clamp(max=len(parent) - 1)]  # shorter sequences do not use it
        rows = torch.where(length >= step, before, rows)
    return path.t()


def _gather(history: list[BackPointers], path: Tensor, name: str) -> Tensor:
    """A field of the back-pointers along paths, (N, max length + 1)."""
    columns = [getattr(each, name) for each, _ in zip(history, path.t(), strict=False)]
    pairs = zip(columns, path.t(), strict=True)
    return torch.stack([values[rows.clamp(max=len(values) - 1)] for values, rows in pairs], 1)


def token_sequences(history: list[BackPointers], length: Tensor, row: Tensor) -> list[list[int]]:
    """The tokens of live sequences of these lengths and rows, without begin."""
    tokens = _gather(history, _ancestors(history, length, row), "token").tolist()
    return [each[1 : size + 1] for each, size in zip(tokens, length.tolist(), strict=True)]


def backtrace(
    history: list[BackPointers], ends: Ends, has_attention: Sequence[bool], sizes: Sequence[int]
) -> list[Hypothesis]:
    """The hypotheses of finished sequences, by following the back-pointers.

    Args:
        history: for each length from zero.
        ends: the sequences.
        has_attention: which of them get their attention, if the history has it.
        sizes: the length of each input, without padding.
    """
    path = _ancestors(history, ends.length, ends.parent)
    token, probability = (_gather(history, path, name) for name in ("token", "probability"))
    columns = (path, token, probability, ends.item, ends.log_p, ends.length, ends.probability)
    found = []
    for is_attended, rows, tokens, factors, item, log_p, length, end in zip(
        has_attention, *(column.tolist() for column in columns), strict=True
    ):
        attention = None
        if is_attended and history[0].attention is not None:
            steps = enumerate(rows[: length + 1])
            weights = [history[step].attention[row] for step, row in steps]  # type: ignore[index]
            attention = torch.stack(weights)[..., : sizes[item]]
        finished = not math.isnan(end)
        chain = factors[1 : length + 1] + ([end] if finished else [])
        found.append(
            Hypothesis(tuple(tokens[1 : length + 1]), log_p, tuple(chain), finished, attention)
        )
    return found
