"""Length normalization: by which score finished sequences are ranked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Normalization:
    """The score log p(y) / |y|^power of a sequence; |y| counts its tokens and its end.

    Args:
        power: zero ranks by probability.
        max_length: the largest number of tokens of a sequence, without its end.

    >>> Normalization(0.5, max_length=8).score(-6.0, 3)
    -3.0
    """

    power: float
    max_length: int

    def score(self, log_p: Number, length: int | Tensor) -> Number:
        """Of sequences with these log-probabilities and numbers of tokens, without their ends."""
        return log_p / (length + 1) ** self.power if self.power else log_p  # type: ignore[operator]

    def best(self, log_p: Number) -> Number:
        """An upper bound of the score of every sequence that begins with a prefix.

        No continuation is more probable than its prefix, and logarithms of probabilities are not
        positive, so the longest one would be the best.
        """
        return self.score(log_p, self.max_length)
