"""Constraints of a batch, as masks of the next token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..data._copying import NOT_COPIED, CopyingTarget
from ..data._vocabulary import EOS, UNK, Vocabulary
from ..models._ensemble import Ensemble
from ._constraints import Constraint, Prefix, token_ids
from ._hypotheses import BackPointers, Sequences, token_sequences


def restriction_of(
    ensemble: Ensemble, source: Tensor, constraints: Sequence[Constraint | None]
) -> Restriction | None:
    """The constraints of a batch of sources (B, S); None if there are none."""
    if not any(constraints):
        return None
    copied = ensemble.copied_tokens(source)
    return Restriction(constraints, ensemble.vocabulary, source.device, copied)


class Restriction:
    """Which tokens may follow the sequences of a search.

    A mask has a column for each token of the vocabulary. If the models copy, a column for each
    position of the source follows, as in `Pointer.merge`: a token that is copied is allowed as the
    same token is that is written, and a column that never has a probability is not allowed.

    Args:
        constraints: one for each input, or None.
        vocabulary: of the targets.
        device: of the search.
        copied: if the models copy, the tokens of the columns behind the vocabulary's, as
            `Ensemble.copied_tokens` returns them.
    """

    def __init__(
        self,
        constraints: Sequence[Constraint | None],
        vocabulary: Vocabulary | None,
        device: torch.device,
        copied: Tensor | None = None,
    ) -> None:
        self._device, self._vocabulary = device, vocabulary
        rows: list[list[int]] = [[]] * len(constraints) if copied is None else copied.tolist()
        self._places = [
            {token: place for place, token in enumerate(row) if token != NOT_COPIED} for row in rows
        ]
        self._prefixes = [
            Prefix(each.prefix, vocabulary, places) if each and each.prefix else None
            for each, places in zip(constraints, self._places, strict=True)
        ]
        index: list[int] = []
        sets: dict[tuple[frozenset[int] | None, frozenset[int]], int] = {(None, frozenset()): 0}
        for each in constraints:
            only, never = None, set[int]()
            if each is not None:
                if each.allowed is not None:
                    only = frozenset(token_ids("allowed", each.allowed, vocabulary))
                never = token_ids("forbidden", each.forbidden, vocabulary)
                never |= set() if each.allow_unknown else {UNK}
            index.append(sets.setdefault((only, frozenset(never)), len(sets)))
        self._sets = list(sets)
        self._index = torch.tensor(index, device=device)
        self._masks: Tensor | None = None
        self._copied: Tensor | None = None
        if copied is not None:
            masks = [self._copied_mask(*pair) for pair in zip(rows, index, strict=True)]
            self._copied = torch.tensor(masks, device=device)
        self._forced: dict[int, tuple[list[int], dict[int, int]]] = {}
        self._is_open = torch.tensor([each is not None for each in self._prefixes], device=device)

    def advance(self, live: Sequences, history: list[BackPointers], length: int) -> None:
        """Finds what may follow each live sequence of `length` tokens; `history` has the others."""
        self._is_open = self._is_open[live.parent]
        rows = self._is_open.nonzero().squeeze(1)
        self._forced = {}
        if not len(rows):
            return
        own = BackPointers(live.parent, live.token, live.probability)
        sequences = token_sequences([*history, own], torch.full_like(rows, length), rows)
        items = live.item[rows].tolist()
        for row, item, tokens in zip(rows.tolist(), items, sequences, strict=True):
            prefix = self._prefixes[item]
            following = None if prefix is None else prefix.after(tokens)
            if following is not None:
                self._forced[row] = following, self._places[item]
        is_open = torch.zeros_like(self._is_open)
        is_open[list(self._forced)] = True
        self._is_open = is_open

    @property
    def has_prefix(self) -> Tensor:
        """Whether each live sequence of the last `advance` has its whole prefix, (R,)."""
        return ~self._is_open

    def mask(self, live: Sequences, begin: int, size: int) -> Tensor:
        """The columns (R, size) that may follow these live sequences; the first is row `begin`."""
        known = size if self._copied is None else size - self._copied.shape[1]
        if self._masks is None:
            self._masks = self._known_masks(known)
        mask = self._masks[self._index[live.item]]
        if self._copied is not None:
            mask = torch.cat([mask, self._copied[live.item]], 1)
        for row in range(begin, begin + len(live)):
            if row in self._forced:
                tokens, places = self._forced[row]
                leads = torch.zeros_like(mask[0])
                leads[self._known("prefix", tokens, known)] = True
                leads[[known + places[token] for token in tokens if token in places]] = True
                mask[row - begin] &= leads
        return mask

    def _known_masks(self, size: int) -> Tensor:
        """The vocabulary's tokens (sets, size) that each of the sets allows."""
        masks = torch.ones(len(self._sets), size, dtype=torch.bool, device=self._device)
        for mask, (only, never) in zip(masks, self._sets, strict=True):
            if only is not None:
                mask[:] = False
                mask[[*self._known("allowed", only, size), EOS]] = True
            mask[self._known("forbidden", never, size)] = False
        return masks

    def _copied_mask(self, tokens: list[int], index: int) -> list[bool]:
        """Which of these tokens a set allows, and are tokens at all."""
        only, never = self._sets[index]
        return [
            token != NOT_COPIED and (only is None or token in only) and token not in never
            for token in tokens
        ]

    def _known(self, name: str, ids: Collection[int], size: int) -> list[int]:
        """The ids of a vocabulary of this size; raises a ValueError for what is no token's id."""
        whole = self._vocabulary if isinstance(self._vocabulary, CopyingTarget) else None
        beyond = [each for each in ids if not 0 <= each < size]
        if wrong := [each for each in beyond if whole is None or not whole.has_id(each)]:
            others = ", or those of copied tokens" if whole else ""
            raise ValueError(
                f"`{name}` must hold token ids below {size}{others}, got {min(wrong)}."
            )
        return [each for each in ids if each < size]
