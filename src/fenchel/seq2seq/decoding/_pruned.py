"""What a search prunes: the most probable prefixes one by one, and the sum of all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._hypotheses import Ends, Sequences, Table
from ._normalization import Normalization

MAX_PREFIXES = 64
"""How many of the most probable pruned prefixes of an input are kept one by one."""


def ranks(group: Tensor, value: Tensor) -> Tensor:
    """The rank of each entry in its group, 0 for the largest value; of equal ones, the first.

    Both sorts are stable, so that equal entries keep their order on every device.
    """
    order = value.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    ordered = group[order]
    first = torch.searchsorted(ordered, ordered)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - first
    return rank


@dataclass(frozen=True)
class Prefixes(Table):
    """Pruned prefixes, (N,) each.

    `item` is the input, and `mass` the probability of all sequences that begin with the prefix. The
    prefix is row `parent` of the live sequences of `length` tokens, and `token` after it.
    """

    item: Tensor
    mass: Tensor
    length: Tensor
    parent: Tensor
    token: Tensor


class Pruned:
    """Everything of nonzero probability that a search has pruned, for every input.

    Args:
        items: the number of inputs.
        has_mass: whether `mass` and `largest` are computed; otherwise only the maxima are.
        device: of the search.
        normalization: bounds the scores of what may follow a prefix.
    """

    def __init__(
        self, items: int, has_mass: bool, device: torch.device, normalization: Normalization
    ) -> None:
        self._has_mass, self._normalization = has_mass, normalization
        self.max_log_p = torch.full((items,), -math.inf, dtype=torch.float64, device=device)
        """The log-probability of the most probable pruned prefix, (items,)."""
        self.max_upper = self.max_log_p.clone()
        """The largest upper bound of the score of what begins with a pruned prefix, (items,)."""
        self.mass = torch.zeros_like(self.max_log_p)
        """An upper bound of the probability of all pruned prefixes together, (items,)."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        self.largest = Prefixes(none, self.mass[:0], none, none, none)
        """The `MAX_PREFIXES` largest of every input."""

    def add(self, sequences: Sequences, length: int | Tensor) -> None:
        """Adds pruned sequences; their parents have `length` tokens."""
        item = sequences.item
        self.max_log_p = self.max_log_p.scatter_reduce(0, item, sequences.log_p, "amax")
        if isinstance(sequences, Ends):
            score = self._normalization.score(sequences.upper, sequences.length)
        else:
            score = self._normalization.best(sequences.upper)
        self._add_score(item, score)
        self.add_mass(item, sequences.upper.exp(), length, sequences.parent, sequences.token)

    def add_upper(self, item: Tensor, log_p: Tensor) -> None:
        """Adds upper bounds of the log-probabilities of prefixes, (N,), to `max_upper` alone."""
        self._add_score(item, self._normalization.best(log_p))

    def _add_score(self, item: Tensor, score: Tensor) -> None:
        self.max_upper = self.max_upper.scatter_reduce(0, item, score, "amax")

    def add_mass(
        self, item: Tensor, mass: Tensor, length: int | Tensor, parent: Tensor, token: Tensor
    ) -> None:
        """Adds to the mass, and to the largest prefixes, but not to the maxima."""
        if not self._has_mass:
            return
        self.mass = self.mass.scatter_add(0, item, mass)
        lengths = length if isinstance(length, Tensor) else torch.full_like(parent, length)
        is_last = ranks(self.largest.item, self.largest.mass) == MAX_PREFIXES - 1
        smallest = torch.zeros_like(self.mass)
        smallest[self.largest.item[is_last]] = self.largest.mass[is_last]
        is_larger = mass > smallest[item]
        both = self.largest + Prefixes(item, mass, lengths, parent, token)[is_larger]
        self.largest = both[ranks(both.item, both.mass) < MAX_PREFIXES]
