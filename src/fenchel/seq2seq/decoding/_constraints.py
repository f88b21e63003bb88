"""Constraints: which outputs a search or a sample may consider."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..._checks import type_name
from ..data._copying import CopyingTarget
from ..data._subwords import Subwords
from ..data._vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from ._hypotheses import BackPointers, Sequences, token_sequences


@dataclass(frozen=True)
class Constraint:
    """The outputs that are allowed: those that begin with a prefix, and use certain tokens.

    Args:
        prefix: what every output begins with. A text allows all sequences of tokens whose text
            begins with it. (If the first tokens of a text need not spell its beginning, as with
            bytes, it stands for its own tokens.) Token ids are the first tokens themselves.
        allowed: the only tokens of an output, besides its end. A text stands for its own tokens;
            otherwise names of tokens, or ids. None allows all.
        forbidden: tokens that no output has, in the same form.
    Raises:
        TypeError: for anything else. Names are looked up when a search begins.

    >>> Constraint(prefix="dr", forbidden="aeiou")
    Constraint(prefix='dr', allowed=None, forbidden='aeiou')
    """

    prefix: str | Sequence[int] = ""
    allowed: str | Collection[str | int] | None = None
    forbidden: str | Collection[str | int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) and not _holds(self.prefix, int):
            raise TypeError(
                f"`prefix` must be a text or a list of token ids, got {type_name(self.prefix)}."
            )
        for name, value in (("allowed", self.allowed), ("forbidden", self.forbidden)):
            if value is not None and not isinstance(value, str) and not _holds(value, (int, str)):
                raise TypeError(
                    f"`{name}` must be a text, or a list of tokens by name or id, got "
                    f"{type_name(value)}."
                )

    @property
    def is_empty(self) -> bool:
        """Whether everything is allowed."""
        return not self.prefix and self.allowed is None and not self.forbidden


def _holds(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, Collection) and all(
        isinstance(each, kinds) and not isinstance(each, bool) for each in value
    )


def constraint_of_each(constraints: object, count: int) -> list[Constraint | None]:
    """One constraint for each input, None where everything is allowed.

    Args:
        constraints: None, one for all inputs, or a list with one, or None, for each.
        count: the number of inputs.
    """
    if constraints is None or isinstance(constraints, Constraint):
        found = [constraints] * count
    elif isinstance(constraints, list | tuple):
        found = list(constraints)
    else:
        raise TypeError(
            "`constraints` must be a Constraint, or a list with one or None for each input, got "
            f"{type_name(constraints)}."
        )
    if len(found) != count:
        raise ValueError(
            f"`constraints` must hold one for each of {count} inputs, not {len(found)}."
        )
    for each in found:
        if each is not None and not isinstance(each, Constraint):
            raise TypeError(f"`constraints` must hold Constraint or None, got {type_name(each)}.")
    return [None if each is None or each.is_empty else each for each in found]


def token_ids(
    name: str, value: str | Collection[str | int], vocabulary: Vocabulary | None
) -> set[int]:
    """The ids of tokens that a constraint names.

    Raises:
        ValueError: if there is no such token, or no vocabulary; or if a token is special.
    """
    if isinstance(value, str):
        known = _needed(name, vocabulary)
        if missing := known.unknown(value):
            raise ValueError(f"`{name}` has {missing[0]!r}, which is no token of the vocabulary.")
        found = set(known.encode(value))
    else:
        found = {each for each in value if isinstance(each, int)}
        if names := [each for each in value if isinstance(each, str)]:
            ids = _ids(_needed(name, vocabulary))
            for each in names:
                if each not in ids:
                    raise ValueError(f"`{name}` has {each!r}, which is no token of the vocabulary.")
            found |= {ids[each] for each in names}
    if special := found & {PAD, BOS, EOS}:
        raise ValueError(
            f"`{name}` must not hold padding, begin or end (0, 1, 2), got {min(special)}; an "
            "output can always end."
        )
    return found


def _needed(name: str, vocabulary: Vocabulary | None) -> Vocabulary:
    if vocabulary is None:
        raise ValueError(f"`{name}` must hold token ids: the models have no target vocabulary.")
    return vocabulary


@lru_cache(maxsize=4)
def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of every token by its name."""
    return {name: index for index, name in enumerate(vocabulary.tokens(range(vocabulary.size)))}


@lru_cache(maxsize=4)
def _by_first_letter(vocabulary: Vocabulary) -> dict[str, list[int]]:
    """Subwords by their first letter after spaces; those without one, and the unknown, under ""."""
    found: dict[str, list[int]] = {}
    for index, name in enumerate(vocabulary.tokens(range(vocabulary.size))):
        letter = "" if index == UNK else name.replace("▁", " ").lstrip()[:1]
        found.setdefault(letter, []).append(index)
    return found


class Prefix:
    """The beginning that the outputs of an input have, and which tokens lead to it."""

    def __init__(self, prefix: str | Sequence[int], vocabulary: Vocabulary | None) -> None:
        self._text, self._tokens, self._vocabulary = "", (), vocabulary
        self._known: dict[tuple[int, ...], list[int] | None] = {}
        if not isinstance(prefix, str):
            token_ids("prefix", prefix, vocabulary)
            self._tokens = tuple(prefix)
        elif _needed("prefix", vocabulary).is_prefix_monotone:
            self._text = prefix
        else:
            self._tokens = tuple(_needed("prefix", vocabulary).encode(prefix))

    def after(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens that may follow; None if the prefix is there, and all may."""
        if not self._text:
            rest = self._tokens[len(tokens) :]
            return [rest[0]] if rest else None
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._continuations(list(tokens))
        return self._known[key]

    def _continuations(self, tokens: list[int]) -> list[int] | None:
        known, wanted = _needed("prefix", self._vocabulary), self._text
        text = known.decode(tokens)
        if text.startswith(wanted):
            return None
        candidates: Collection[int] = range(known.size)
        if isinstance(known, Subwords) and (letter := wanted[len(text) :].lstrip()[:1]):
            groups = _by_first_letter(known)
            candidates = [*groups.get(letter, ()), *groups.get("", ())]
        found = []
        for token in candidates:
            if token not in (PAD, BOS, EOS):
                longer = known.decode([*tokens, token])
                if longer.startswith(wanted) or wanted.startswith(longer):
                    found.append(token)
        return found


class Restriction:
    """The constraints of a batch, as masks of the next token.

    Args:
        constraints: one for each input, or None.
        vocabulary: of the targets.
        device: of the search.
    """

    def __init__(
        self,
        constraints: Sequence[Constraint | None],
        vocabulary: Vocabulary | None,
        device: torch.device,
    ) -> None:
        if isinstance(vocabulary, CopyingTarget) and not all(
            each is None or each.is_empty for each in constraints
        ):
            raise ValueError(
                "`constraints` are not for models that copy (`model.copy_source`), whose tokens "
                "depend on the source."
            )
        self._device = device
        self._prefixes = [
            Prefix(each.prefix, vocabulary) if each and each.prefix else None
            for each in constraints
        ]
        self._index = torch.zeros(len(constraints), dtype=torch.int64, device=device)
        sets: dict[tuple[frozenset[int] | None, frozenset[int]], int] = {(None, frozenset()): 0}
        for item, each in enumerate(constraints):
            if each is not None:
                allowed, forbidden = each.allowed, each.forbidden
                only = None if allowed is None else token_ids("allowed", allowed, vocabulary)
                never = token_ids("forbidden", forbidden, vocabulary)
                key = (None if only is None else frozenset(only), frozenset(never))
                self._index[item] = sets.setdefault(key, len(sets))
        self._sets = list(sets)
        self._masks: Tensor | None = None
        self._forced: dict[int, list[int]] = {}
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
                self._forced[row] = following
        is_open = torch.zeros_like(self._is_open)
        is_open[list(self._forced)] = True
        self._is_open = is_open

    def mask(self, live: Sequences, begin: int, size: int) -> Tensor:
        """The tokens (R, size) that may follow these live sequences, which start at row `begin`."""
        if self._masks is None:
            self._masks = self._all_masks(size)
        mask = self._masks[self._index[live.item]]
        for row in range(begin, begin + len(live)):
            if row in self._forced:
                leads = torch.zeros_like(mask[0])
                leads[_checked("prefix", self._forced[row], size)] = True
                mask[row - begin] &= leads
        return mask

    def _all_masks(self, size: int) -> Tensor:
        masks = torch.ones(len(self._sets), size, dtype=torch.bool, device=self._device)
        for mask, (only, never) in zip(masks, self._sets, strict=True):
            if only is not None:
                mask[:] = False
                mask[[*_checked("allowed", only, size), EOS]] = True
            mask[_checked("forbidden", never, size)] = False
        return masks


def _checked(name: str, ids: Collection[int], size: int) -> list[int]:
    """The ids as a list, checked to be those of a vocabulary of this size."""
    if wrong := [each for each in ids if not 0 <= each < size]:
        raise ValueError(f"`{name}` must hold token ids below {size}, got {min(wrong)}.")
    return list(ids)
