"""The texts that finished sequences spell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data._vocabulary import Vocabulary
from ._hypotheses import BackPointers, Ends, logsumexp, token_sequences
from ._normalization import Normalization
from ._pruned import Pruned, ranks

MIN_FINISHED = 256
"""An input keeps at least this many finished sequences, if several may spell the same text."""


class Finished:
    """The most probable finished sequences of every input, grouped by the texts that they spell.

    Args:
        empty: no sequence, on the device of the search.
        items: the number of inputs.
        keep: how many texts of an input are wanted.
        vocabulary: spells the texts; None if every sequence is a text of its own.
        normalization: ranks the texts, each by its probability and the length of its most probable
            sequence.
    """

    def __init__(
        self,
        empty: Ends,
        items: int,
        keep: int,
        vocabulary: Vocabulary | None,
        normalization: Normalization,
    ) -> None:
        self.ends, self.keep = empty, keep
        self._items, self._vocabulary, self._normalization = items, vocabulary, normalization
        self.max_sequences = keep if vocabulary is None else max(keep, MIN_FINISHED)
        """How many finished sequences an input keeps."""
        self.names: list[str] = []
        """The texts; `Ends.text` is an index into them."""
        self._indices: dict[tuple[int, str], int] = {}

    def add(self, more: Ends, history: list[BackPointers], pruned: Pruned) -> None:
        """Adds finished sequences, and prunes the least probable ones beyond `max_sequences`."""
        ends = self.ends + more
        score = self._normalization.score(ends.log_p, ends.length)
        is_kept = ranks(ends.item, score) < self.max_sequences
        pruned.add(ends[~is_kept], ends.length[~is_kept])
        self.ends = self._with_texts(ends[is_kept], history)

    def add_unfinished(self, more: Ends, history: list[BackPointers]) -> None:
        """Adds prefixes of inputs that have no finished sequence."""
        self.ends = self._with_texts(self.ends + more, history)

    def _with_texts(self, ends: Ends, history: list[BackPointers]) -> Ends:
        """The ends, with the index of its text in each."""
        new = (ends.text < 0).nonzero().squeeze(1)
        if self._vocabulary is None:
            first = int(ends.text.max()) + 1 if len(ends) else 0
            ends.text[new] = torch.arange(first, first + len(new), device=new.device)
            return ends
        if not len(new):
            return ends
        sequences = token_sequences(history, ends.length[new], ends.parent[new])
        indices = []
        for item, tokens in zip(ends.item[new].tolist(), sequences, strict=True):
            name = self._vocabulary.decode(tokens)
            index = self._indices.setdefault((item, name), len(self.names))
            if index == len(self.names):
                self.names.append(name)
            indices.append(index)
        ends.text[new] = torch.tensor(indices, device=new.device)
        return ends

    def nth_scores(self, *numbers: int) -> list[Tensor]:
        """The score (items,) of the n-th text of every input, −inf if it has none.

        Args:
            numbers: values of n, 1 for the best text.
        """
        item, score = self._texts()
        rank = ranks(item, score)
        found = []
        for number in numbers:
            is_nth = rank == number - 1
            nth = torch.full((self._items,), -math.inf, dtype=score.dtype, device=score.device)
            nth[item[is_nth]] = score[is_nth]
            found.append(nth)
        return found

    def _texts(self) -> tuple[Tensor, Tensor]:
        """The inputs and scores of all texts."""
        ends = self.ends
        if self._vocabulary is None:
            return ends.item, self._normalization.score(ends.log_p, ends.length)
        indices, text = ends.text.unique(return_inverse=True)
        top = torch.full_like(indices, -math.inf, dtype=ends.log_p.dtype)
        top = top.scatter_reduce(0, text, ends.log_p, "amax")
        sums = torch.zeros_like(top).scatter_add(0, text, (ends.log_p - top[text]).exp())
        item = torch.zeros_like(indices).scatter(0, text, ends.item)
        others = ends.length.where(ends.log_p == top[text], self._normalization.max_length)
        length = torch.full_like(indices, self._normalization.max_length)
        length = length.scatter_reduce(0, text, others, "amin")
        return item, self._normalization.score(top + sums.log(), length)


@dataclass(frozen=True)
class Text:
    """A text that was found, and its log-probability.

    Args:
        name: the text itself.
        sequences: the indices of the sequences that spell it, the most probable first.
        log_p: its log-probability.
        lower, upper: bounds of its log-probability in any other batch.
        length: the number of tokens of its most probable sequence, without the end.
    """

    name: str
    sequences: list[int]
    log_p: float
    lower: float
    upper: float
    length: int = 0


def by_input(
    ends: Ends, items: int, names: Sequence[str], normalization: Normalization
) -> list[list[Text]]:
    """The texts of every input, the best first.

    Args:
        ends: finished sequences, the most probable first.
        items: the number of inputs.
        names: the texts; `ends.text` is an index into them.
        normalization: ranks them.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for index, key in enumerate(zip(ends.item.tolist(), ends.text.tolist(), strict=True)):
        groups.setdefault(key, []).append(index)
    columns = [column.tolist() for column in (ends.log_p, ends.lower, ends.upper)]
    lengths = ends.length.tolist()
    found: list[list[Text]] = [[] for _ in range(items)]
    for (item, text), members in groups.items():
        sums = (logsumexp([column[index] for index in members]) for column in columns)
        name = names[text] if names else ""
        found[item].append(Text(name, members, *sums, length=lengths[members[0]]))

    def score(text: Text) -> float:
        return normalization.score(text.log_p, text.length)

    return [sorted(texts, key=score, reverse=True) for texts in found]
