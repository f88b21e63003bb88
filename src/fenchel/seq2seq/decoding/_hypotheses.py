"""What a search found: hypotheses, their probabilities, and what can be claimed of them."""

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
        log_probability: the logarithm of the text's probability, as far as it was found.
        probabilities: of each of the tokens given those before it, the end included.
        finished: false if the length limit broke it off; then no end is included, and the
            probability is that of a prefix.
        attention: (tokens and end, heads, source), if it was asked for.
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
        """That of the text: of `tokens` and all `others` together."""
        return math.exp(self.log_probability)

    @classmethod
    def of(cls, sequences: Sequence[Hypothesis]) -> Hypothesis:
        """The text that these sequences spell, the most probable first."""
        first, *others = sequences
        if not others:
            return first
        log = log_sum([each.log_probability for each in sequences])
        return replace(first, log_probability=log, others=tuple(others))


def log_sum(logs: Sequence[float]) -> float:
    """log Σ exp, which no logarithm is too small for.

    >>> log_sum([-2000.0]), round(log_sum([-2000.0, -2000.0]) + 2000, 3)
    (-2000.0, 0.693)
    """
    most = max(logs)
    if len(logs) == 1 or most == -math.inf:
        return most
    return most + math.log(math.fsum(math.exp(log - most) for log in logs))


@dataclass(frozen=True)
class Result:
    """The texts found for one input, the most probable first, with two certificates.

    Args:
        hypotheses: finished ones; where the length limit let none finish, the prefixes that it
            broke off, as a makeshift.
        exact: whether no text at all is more probable than the first, whatever was not found.
        complete: whether these are all texts of nonzero probability, and their probabilities whole;
            they then sum to one.
        bound: no text that is not among the hypotheses is more probable than this; zero if the
            search is complete.
        limited: whether the length limit broke off a hypothesis that could have been among these.

    >>> Result([Hypothesis((5,), math.log(0.75), (0.75, 1.0))], True, False, 0.25, False).mass
    0.75
    """

    hypotheses: list[Hypothesis]
    exact: bool
    complete: bool
    bound: float
    limited: bool

    @property
    def mass(self) -> float:
        """The probability of all finished hypotheses together."""
        return math.fsum(each.probability for each in self.hypotheses if each.finished)


@dataclass(frozen=True)
class Rows:
    """Tensors of one length, side by side."""

    def __getitem__(self, index: Tensor | slice) -> Self:
        return type(self)(*(value[index] for value in vars(self).values()))

    def __add__(self, other: Self) -> Self:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(torch.cat(pair) for pair in pairs))

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class Links:
    """How the live hypotheses of a length follow from those that are one token shorter: (R,) each.

    `attention` (R, heads, S) is what these hypotheses attend to for their next token.
    """

    parent: Tensor
    token: Tensor
    probability: Tensor
    attention: Tensor | None = None


@dataclass(frozen=True)
class Sequences(Rows):
    """Sequences of tokens, (N,) each.

    `item` is their input, `log` that of their probability, `low` and `high` the least and the most
    that it may be in another batch, `probability` that of their last token alone. `row` is the
    place of the sequence without that token among the live ones of its length.
    """

    item: Tensor
    log: Tensor
    low: Tensor
    high: Tensor
    row: Tensor
    token: Tensor
    probability: Tensor


@dataclass(frozen=True)
class Ends(Sequences):
    """Sequences that have ended, or were broken off, without the end's own token.

    `length` is that of the sequence, `probability` that of its end, NaN if it has none, and `text`
    the number of what it spells.
    """

    length: Tensor
    text: Tensor

    @classmethod
    def at(cls, length: int, rows: Sequences) -> Self:
        """Sequences of `length` tokens and the end; their texts are not known yet."""
        sizes, none = torch.full_like(rows.row, length), torch.full_like(rows.row, -1)
        return cls(**vars(rows), length=sizes, text=none)


def paths(history: list[Links], length: Tensor, row: Tensor) -> Tensor:
    """The rows (N, longest + 1) that lead to rows (N,) of these lengths, from the empty one on."""
    rows, longest = row.clone(), int(length.max()) if len(length) else 0
    path = torch.zeros(longest + 1, len(row), dtype=torch.int64, device=row.device)
    for step in range(longest, -1, -1):
        path[step] = rows
        parent = history[step].parent
        before = parent[rows.clamp(max=len(parent) - 1)]  # those of shorter ones are not read
        rows = torch.where(length >= step, before, rows)
    return path.t()


def _along(history: list[Links], path: Tensor, name: str) -> Tensor:
    """What the links of a path hold, (N, longest + 1)."""
    columns = [getattr(links, name) for links, _ in zip(history, path.t(), strict=False)]
    pairs = zip(columns, path.t(), strict=True)
    return torch.stack([values[rows.clamp(max=len(values) - 1)] for values, rows in pairs], 1)


def spelled(history: list[Links], length: Tensor, row: Tensor) -> list[list[int]]:
    """The tokens of live sequences, without the beginning."""
    tokens = _along(history, paths(history, length, row), "token").tolist()
    return [each[1 : size + 1] for each, size in zip(tokens, length.tolist(), strict=True)]


def trace(
    history: list[Links], ends: Ends, attended: Sequence[bool], sizes: Sequence[int]
) -> list[Hypothesis]:
    """Follows the links back from every end.

    Args:
        history: one for each length, from zero on.
        ends: the sequences.
        attended: which of them come with their attention, if there is any.
        sizes: the length of each input, to which attention is cut.
    """
    path = paths(history, ends.length, ends.row)
    tokens, chances = (_along(history, path, name) for name in ("token", "probability"))
    columns = (path, tokens, chances, ends.item, ends.log, ends.length, ends.probability)
    found = []
    for looks, rows, words, chain, item, log, length, end in zip(
        attended, *(column.tolist() for column in columns), strict=True
    ):
        attention = None
        if looks and history[0].attention is not None:
            steps = enumerate(rows[: length + 1])
            weights = [history[step].attention[row] for step, row in steps]  # type: ignore[index]
            attention = torch.stack(weights)[..., : sizes[item]]
        finished = not math.isnan(end)
        chances_of = chain[1 : length + 1] + ([end] if finished else [])
        found.append(
            Hypothesis(tuple(words[1 : length + 1]), log, tuple(chances_of), finished, attention)
        )
    return found
