"""What a search found: hypotheses, their probabilities, and what can be claimed of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import Self  # which torch itself needs


@dataclass(frozen=True)
class Hypothesis:
    """An output and its probability, the product of its tokens' probabilities.

    Args:
        tokens: without the beginning and the end of the sequence.
        log_probability: the logarithm of its probability.
        probabilities: of each token given those before it, the end of the sequence included.
        finished: false if the length limit broke it off; then no end is included, and the
            probability is that of a prefix.
        attention: (tokens and end, heads, source), if it was asked for.

    >>> Hypothesis((5, 6), math.log(0.5), (0.5, 1.0, 1.0)).probability
    0.5
    """

    tokens: tuple[int, ...]
    log_probability: float
    probabilities: tuple[float, ...]
    finished: bool = True
    attention: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def probability(self) -> float:
        """The product of the tokens' probabilities."""
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class Result:
    """The hypotheses found for one input, the most probable first, with two certificates.

    Args:
        hypotheses: finished ones; where the length limit let none finish, the prefixes that it
            broke off, as a makeshift.
        exact: whether no output at all is more probable than the first hypothesis.
        complete: whether these are all outputs of nonzero probability, which then sum to one.
        bound: no output that is not among the hypotheses is more probable than this; zero if the
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

    def __getitem__(self, index: Tensor) -> Self:
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
class Ends(Rows):
    """Where hypotheses end, (N,) each: their input, length, row among the live ones of that length.

    `log` is that of their probability, `probability` that of their end, NaN if they have none.
    """

    item: Tensor
    log: Tensor
    length: Tensor
    row: Tensor
    probability: Tensor


def trace(history: list[Links], ends: Ends, sizes: list[int]) -> list[list[Hypothesis]]:
    """Follows the links back from every end; one list for each of the `sizes`, in the given order.

    Args:
        history: one for each length, from zero on.
        ends: the hypotheses.
        sizes: the length of each input, to which attention is cut.
    """
    found: list[list[Hypothesis]] = [[] for _ in sizes]
    if not len(ends):
        return found
    longest = int(ends.length.max())
    rows = ends.row.clone()
    path = torch.zeros(longest + 1, len(ends), dtype=torch.int64, device=rows.device)
    tokens, probabilities = torch.zeros_like(path), path.to(torch.float64)
    for length in range(longest, -1, -1):
        on = ends.length >= length
        path[length] = rows
        links = history[length]
        at = rows.clamp(max=len(links.token) - 1)  # rows of shorter hypotheses are not read
        tokens[length] = links.token[at]
        probabilities[length] = links.probability[at]
        rows = torch.where(on, links.parent[at], rows)
    tokens, probabilities, path = tokens.t().cpu(), probabilities.t().cpu(), path.t()
    columns = (each.tolist() for each in (ends.item, ends.log, ends.length, ends.probability))
    for place, (item, log, length, end) in enumerate(zip(*columns, strict=True)):
        attention = None
        if history[0].attention is not None:
            steps = [history[k].attention[path[place, k]] for k in range(length + 1)]  # type: ignore[index]
            attention = torch.stack(steps)[..., : sizes[item]]
        finished = not math.isnan(end)
        chain = probabilities[place, 1 : length + 1].tolist() + ([end] if finished else [])
        words = tuple(tokens[place, 1 : length + 1].tolist())
        found[item].append(Hypothesis(words, log, tuple(chain), finished, attention))
    return found
