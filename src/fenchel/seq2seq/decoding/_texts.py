"""The texts that finished sequences spell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data._vocabulary import Vocabulary
from ._cuts import Cuts, ranks
from ._hypotheses import Ends, Links, log_sum, spelled

ROOM = 256
"""The least number of finished sequences that an input keeps, where several may spell a text."""


class Finished:
    """The most probable finished sequences of every input, by the texts that they spell.

    Args:
        empty: no sequence, on the device of the search.
        items: how many inputs there are.
        keep: how many texts of an input are wanted.
        vocabulary: what spells texts, or None where every sequence is one of its own.
    """

    def __init__(self, empty: Ends, items: int, keep: int, vocabulary: Vocabulary | None) -> None:
        self.ends, self.keep = empty, keep
        self._items, self._vocabulary = items, vocabulary
        self.room = keep if vocabulary is None else max(keep, ROOM)
        self.names: list[str] = []
        """The texts, by their numbers."""
        self._numbers: dict[tuple[int, str], int] = {}

    def add(self, more: Ends, history: list[Links], cuts: Cuts) -> None:
        """Finished sequences; the least probable ones beyond the room there is are cut."""
        ends = self.ends + more
        kept = ranks(ends.item, ends.log) < self.room
        cuts.add(ends[~kept], ends.length[~kept])
        self.ends = self._numbered(ends[kept], history)

    def add_broken(self, more: Ends, history: list[Links]) -> None:
        """Prefixes that stand for finished sequences where there are none."""
        self.ends = self._numbered(self.ends + more, history)

    def _numbered(self, ends: Ends, history: list[Links]) -> Ends:
        new = (ends.text < 0).nonzero().squeeze(1)
        if self._vocabulary is None:
            first = int(ends.text.max()) + 1 if len(ends) else 0
            ends.text[new] = torch.arange(first, first + len(new), device=new.device)
            return ends
        if not len(new):
            return ends
        sequences = spelled(history, ends.length[new], ends.row[new])
        numbers = []
        for item, tokens in zip(ends.item[new].tolist(), sequences, strict=True):
            name = self._vocabulary.decode(tokens)
            number = self._numbers.setdefault((item, name), len(self.names))
            if number == len(self.names):
                self.names.append(name)
            numbers.append(number)
        ends.text[new] = torch.tensor(numbers, device=new.device)
        return ends

    def places(self, *wanted: int) -> list[Tensor]:
        """The logarithms (items,) of the texts in these places, from 1 on; −inf without one."""
        item, log = self._texts()
        order = ranks(item, log)
        found = []
        for place in wanted:
            at = order == place - 1
            logs = torch.full((self._items,), -math.inf, dtype=log.dtype, device=log.device)
            logs[item[at]] = log[at]
            found.append(logs)
        return found

    def _texts(self) -> tuple[Tensor, Tensor]:
        """The inputs and logarithms of all texts."""
        ends = self.ends
        if self._vocabulary is None:
            return ends.item, ends.log
        numbers, text = ends.text.unique(return_inverse=True)
        top = torch.full_like(numbers, -math.inf, dtype=ends.log.dtype)
        top = top.scatter_reduce(0, text, ends.log, "amax")
        sums = torch.zeros_like(top).scatter_add(0, text, (ends.log - top[text]).exp())
        return torch.zeros_like(numbers).scatter(0, text, ends.item), top + sums.log()


@dataclass(frozen=True)
class Text:
    """A text that was found, the places of its sequences, the best first, and its probability.

    `low` and `high` are the least and the most that it may be in another batch; all are logarithms.
    """

    name: str
    places: list[int]
    log: float
    low: float
    high: float


def by_input(ends: Ends, items: int, names: Sequence[str]) -> list[list[Text]]:
    """The texts of every input, the most probable first; `ends` are in that order, too."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, key in enumerate(zip(ends.item.tolist(), ends.text.tolist(), strict=True)):
        places.setdefault(key, []).append(place)
    logs, lows, highs = (each.tolist() for each in (ends.log, ends.low, ends.high))
    found: list[list[Text]] = [[] for _ in range(items)]
    for (item, number), chosen in places.items():
        sums = (log_sum([column[place] for place in chosen]) for column in (logs, lows, highs))
        found[item].append(Text(names[number] if names else "", chosen, *sums))
    return [sorted(texts, key=lambda text: -text.log) for texts in found]
