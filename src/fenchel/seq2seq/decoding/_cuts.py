"""What a search leaves behind: the most probable of it, and all of it together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._hypotheses import Rows, Sequences

REMEMBERED = 64
"""How many of the most probable prefixes that were cut an input remembers one by one."""


def ranks(group: Tensor, log: Tensor) -> Tensor:
    """The place of each entry among those of its group, from the largest, 0, on; first come first.

    Both sorts are stable, so that equal entries keep their order on every device.
    """
    order = log.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    ordered = group[order]
    first = torch.searchsorted(ordered, ordered)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device) - first
    return places


@dataclass(frozen=True)
class Prefixes(Rows):
    """Prefixes with their mass, (N,) each: row `row` of that `length`, and one token more."""

    item: Tensor
    mass: Tensor
    length: Tensor
    row: Tensor
    token: Tensor


class Cuts:
    """All of nonzero probability that was left behind of every input.

    Args:
        items: how many inputs there are.
        sums: whether more than the most probable is asked for.
        device: of the search.
    """

    def __init__(self, items: int, sums: bool, device: torch.device) -> None:
        self._sums = sums
        self.worst = torch.full((items,), -math.inf, dtype=torch.float64, device=device)
        """The logarithm of the most probable prefix, (items,)."""
        self.high = self.worst.clone()
        """The same of the most that any may be in another batch."""
        self.mass = torch.zeros_like(self.worst)
        """The most that all together may be."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        self.largest = Prefixes(none, self.mass[:0], none, none, none)
        """The `REMEMBERED` largest of every input."""

    def add(self, cut: Sequences, length: int | Tensor) -> None:
        """Sequences whose parents are of this length."""
        self.worst = self.worst.scatter_reduce(0, cut.item, cut.log, "amax")
        self.high = self.high.scatter_reduce(0, cut.item, cut.high, "amax")
        self.add_mass(cut.item, cut.high.exp(), length, cut.row, cut.token)

    def add_mass(
        self, item: Tensor, mass: Tensor, length: int | Tensor, row: Tensor, token: Tensor
    ) -> None:
        """What follows these prefixes, as a whole."""
        if not self._sums:
            return
        self.mass = self.mass.scatter_add(0, item, mass)
        lengths = length if isinstance(length, Tensor) else torch.full_like(row, length)
        known = ranks(self.largest.item, self.largest.mass) == REMEMBERED - 1
        least = torch.zeros_like(self.mass)
        least[self.largest.item[known]] = self.largest.mass[known]
        large = mass > least[item]
        both = self.largest + Prefixes(item, mass, lengths, row, token)[large]
        self.largest = both[ranks(both.item, both.mass) < REMEMBERED]
