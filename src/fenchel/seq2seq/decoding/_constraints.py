"""Constraints: which outputs a search or a sample may consider."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..._checks import type_name
from ..data._copying import CopyingTarget
from ..data._subwords import Subwords
from ..data._vocabulary import BOS, EOS, PAD, UNK, Vocabulary


@dataclass(frozen=True)
class Constraint:
    """The outputs that are allowed: those that begin with a prefix, and use certain tokens.

    A model that copies gives a token by writing it, or by copying it from the source: either is
    allowed if the token is. Such a model's tokens are those of its vocabulary and all others that
    a source may have.

    Args:
        prefix: what every output begins with. A text allows all sequences of tokens whose text
            begins with it. (If the first tokens of a text need not spell its beginning, as with
            bytes, it stands for its own tokens.) Token ids are the first tokens themselves.
        allowed: the only tokens of an output, besides its end. A text stands for its own tokens;
            otherwise names of tokens, or ids. None allows all.
        forbidden: tokens that no output has, in the same form.
        allow_unknown: False forbids the unknown token, which a text shows as "�", or as "⁇" if
            the tokens are subwords. What a model copies is never this token.
    Raises:
        TypeError: for anything else. Names are looked up when a search begins.

    >>> Constraint(prefix="dr", forbidden="aeiou")
    Constraint(prefix='dr', allowed=None, forbidden='aeiou', allow_unknown=True)
    """

    prefix: str | Sequence[int] = ""
    allowed: str | Collection[str | int] | None = None
    forbidden: str | Collection[str | int] = ()
    allow_unknown: bool = True

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
        if not isinstance(self.allow_unknown, bool):
            raise TypeError(f"`allow_unknown` must be a bool, got {type_name(self.allow_unknown)}.")

    @property
    def is_empty(self) -> bool:
        """Whether everything is allowed."""
        has_tokens = self.allowed is not None or bool(self.forbidden) or not self.allow_unknown
        return not self.prefix and not has_tokens


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
        for each in known.unknown(value):
            _copied_id(name, each, known)
        found = set(known.encode(value))
    else:
        found = {each for each in value if isinstance(each, int)}
        if names := [each for each in value if isinstance(each, str)]:
            known = _needed(name, vocabulary)
            ids = _ids(known)
            found |= {ids[each] if each in ids else _copied_id(name, each, known) for each in names}
    if special := found & {PAD, BOS, EOS}:
        raise ValueError(
            f"`{name}` must not hold padding, begin or end (0, 1, 2), got {min(special)}; an "
            "output can always end."
        )
    return found


def _copied_id(name: str, token: str, vocabulary: Vocabulary) -> int:
    """The id of a token that is not in a vocabulary; only a model that copies can give it."""
    if not isinstance(vocabulary, CopyingTarget) or not vocabulary.can_copy(token):
        raise ValueError(f"`{name}` has {token!r}, which is no token of the vocabulary.")
    return vocabulary.copy_id(token)


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
    """The beginning that the outputs of an input have, and which tokens lead to it.

    Args:
        prefix: of a `Constraint`.
        vocabulary: of the targets.
        copied: the tokens that are not in the vocabulary, but may be copied from this input.
    """

    def __init__(
        self,
        prefix: str | Sequence[int],
        vocabulary: Vocabulary | None,
        copied: Collection[int] = (),
    ) -> None:
        self._text, self._tokens, self._vocabulary = "", (), vocabulary
        self._copied = copied
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
        candidates = [*range(known.size), *self._copied]
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
