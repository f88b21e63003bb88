"""The vocabularies of a model that copies: tokens that it does not know have ids, too.

A copied token's id is that of the target vocabulary. If it is not in it, the id is the vocabulary's
size plus `FIRST_CODE` plus its place among the source vocabulary's other tokens, or else plus
`FIRST_OTHER` plus the token's code. An unknown token of a source has the size of the source
vocabulary plus the id with which it is copied. So the ids of an input say all that the model needs
to know, and those of an output are its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._codes import CODES
from ._features import Featured
from ._normalized import Normalized
from ._subwords import Subwords
from ._vocabulary import (
    SPECIAL,
    UNK,
    UNKNOWN,
    TokenList,
    Vocabulary,
    Words,
    content_ids,
    quoted,
)

NOT_COPIED = -1
"""In place of the id with which a token of a source is copied: it is not."""

FIRST_CODE = 1 << 24
"""Between the ids of a vocabulary and those of other tokens, so that a column of a model's
probabilities, which may be one of the source's positions, is never taken for a token."""
FIRST_OTHER = 2 * FIRST_CODE
"""Before the codes of tokens that are in neither vocabulary."""


class CopyingTarget(Vocabulary):
    """A target vocabulary of characters or words, in which every token has an id.

    Args:
        known: the vocabulary; `size` is its size.
        copied: the tokens of the source vocabulary, of which some are not in this one.
    """

    def __init__(self, known: TokenList, copied: Sequence[str] = ()) -> None:
        self.kind, self.known = known.kind, known  # type: ignore[misc]
        self._others = [each for each in copied if known.encode(each) == [UNK]]
        self._places = {token: place for place, token in enumerate(self._others)}

    @property
    def size(self) -> int:
        return self.known.size

    @property
    def is_unambiguous(self) -> bool:
        return self.known.is_unambiguous

    @property
    def is_prefix_monotone(self) -> bool:
        return self.known.is_prefix_monotone

    def copy_id(self, token: str) -> int:
        """The id of any token."""
        (index,) = self.known.encode(token) or [UNK]
        if index != UNK:
            return index
        if token in self._places:
            return self.size + FIRST_CODE + self._places[token]
        return self.size + FIRST_OTHER + self.known.code(token)

    def has_id(self, index: int) -> bool:
        """Whether this is the id of a token of the vocabulary, or of another that is remembered."""
        return 0 <= index < self.size or self._other(index) is not None

    def can_copy(self, token: str) -> bool:
        """Whether a text is one token, and not what stands for unknown ones."""
        return self.known.copyable(token) == [token]

    def encode(self, text: str) -> list[int]:
        found = zip(self.known.encode(text), self.known.copyable(text), strict=True)
        with CODES.in_use():
            return [
                index if index != UNK or token is None else self.copy_id(token)
                for index, token in found
            ]

    def normalize(self, text: str) -> str:
        return self.known.normalize(text)

    def unknown(self, text: str) -> list[str]:
        return self.known.unknown(text)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [
            self.known.tokens([index])[0] if index < self.size else self._copied(index)
            for index in ids
        ]

    def decode(self, ids: Sequence[int]) -> str:
        names = zip(content := list(content_ids(ids)), self.tokens(content), strict=True)
        return self.known.separator.join(UNKNOWN if index == UNK else name for index, name in names)

    def _copied(self, index: int) -> str:
        if index < self.size + FIRST_CODE:
            raise ValueError(
                f"a token must be an id below {self.size}, or that of a copied token; got {index}, "
                "a column of the probabilities, which `Ensemble.tokens` turns into a token."
            )
        return self._other(index) or SPECIAL[UNK]

    def _other(self, index: int) -> str | None:
        """The token with an id that is not the vocabulary's, or None if there is none."""
        place = int(index) - self.size - FIRST_CODE
        if 0 <= place < len(self._others):
            return self._others[place]
        code = int(index) - self.size - FIRST_OTHER
        return self.known.of_code(code) if code >= 0 else None

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        return self.known.extended(other, size)

    def ids_in(self, extended: Vocabulary) -> list[int]:
        return self.known.ids_in(
            extended.known if isinstance(extended, CopyingTarget) else extended
        )

    def to_json(self) -> dict[str, Any]:
        return self.known.to_json()


class CopyingSource(Vocabulary):
    """A source vocabulary whose unknown tokens are told apart, so that they can be copied.

    Args:
        known: the vocabulary; `size` is its size.
        target: of the model.
    """

    def __init__(self, known: Vocabulary, target: CopyingTarget) -> None:
        self.kind, self.known, self._target = known.kind, known, target  # type: ignore[misc]
        self.languages: list[str] = getattr(known, "languages", [])
        """Those of inflection."""

    @property
    def size(self) -> int:
        return self.known.size

    def encode(self, text: str) -> list[int]:
        found = zip(self.known.encode(text), self.copyable(text), strict=True)
        with CODES.in_use():
            return [
                index if index != UNK or token is None else self.size + self._target.copy_id(token)
                for index, token in found
            ]

    def normalize(self, text: str) -> str:
        return self.known.normalize(text)

    def copy_ids(self) -> list[int]:
        """The id with which each known token is copied, or `NOT_COPIED`."""
        return [
            NOT_COPIED if token is None else self._target.copy_id(token)
            for token in self.known.copyable_tokens()
        ]

    def unknown(self, text: str) -> list[str]:
        """Those that cannot be copied either."""
        copyable = self.copyable(text)
        places = [at for at, index in enumerate(self.known.encode(text)) if index == UNK]
        found = zip(self.known.unknown(text), places, strict=True)
        return [part for part, at in found if copyable[at] is None]

    def copyable(self, text: str) -> list[str | None]:
        return [
            token if token is not None and self._target.can_copy(token) else None
            for token in self.known.copyable(text)
        ]

    def can_copy_all(self, text: str) -> bool:
        """Whether all tokens of a text that may be copied can be tokens of the target."""
        return self.copyable(text) == self.known.copyable(text)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [
            self.known.tokens([index])[0]
            if index < self.size
            else self._target.tokens([index - self.size])[0]
            for index in ids
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return self.known.decode([index if index < self.size else UNK for index in ids])

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        return self.known.extended(other, size)

    def ids_in(self, extended: Vocabulary) -> list[int]:
        return self.known.ids_in(
            extended.known if isinstance(extended, CopyingSource) else extended
        )

    def to_json(self) -> dict[str, Any]:
        return self.known.to_json()


def copying(source: Vocabulary, target: Vocabulary) -> tuple[CopyingSource, CopyingTarget]:
    """Both vocabularies of a model, for copying.

    Raises:
        ValueError: if the source's tokens cannot be tokens of the target.

    >>> from ._vocabulary import Characters
    >>> source, target = copying(Characters("ab"), Characters("ac"))
    >>> source.encode("abcd") == [4, 5, 6 + 5, 6 + 6 + FIRST_OTHER + ord("d")]
    True
    >>> target.decode([4, 6 + FIRST_OTHER + ord("d"), 5])
    'adc'
    """
    if isinstance(source, CopyingSource) and isinstance(target, CopyingTarget):
        return source, target
    if isinstance(target, Normalized):
        raise ValueError(
            "`model.copy_source` copies text as it is, and cannot be combined with `data.unicode`; "
            "normalize the files instead."
        )
    if isinstance(source, Subwords) or not isinstance(target, TokenList):
        raise ValueError(
            "`model.copy_source` is for characters or words; subwords spell unknown words as they "
            f"are. Got a source of {source.kind} and a target of {target.kind}; set `data.tokens`."
        )
    tokens = [token for token in source.copyable_tokens() if token is not None]
    has_words = isinstance(_split_by(source), Words) and not isinstance(target, Words)
    if has_words or any(len(target.split(token)) != 1 for token in tokens):
        raise ValueError(_not_the_same(source, target))
    whole = CopyingTarget(target, tokens)
    return CopyingSource(source, whole), whole


def check_copyable(source: Vocabulary, target: Vocabulary, text: str) -> None:
    """Checks that a source of training has no token that cannot be one of the target, such as a
    space that has no place in the vocabulary.

    Raises:
        ValueError: as `copying` does for a token of the vocabulary.
    """
    if isinstance(source, CopyingSource) and not source.can_copy_all(text):
        raise ValueError(f"{_not_the_same(source, target)} There is one in {quoted(text)}.")


def _not_the_same(source: Vocabulary, target: Vocabulary) -> str:
    return (
        f"`model.copy_source` needs tokens that are the same on both sides; got a source of "
        f"{source.kind} and a target of {target.kind}. Set `data.tokens.source` and "
        "`data.tokens.target` to the same; characters are copied into a target of tokens only "
        "if no source has a space."
    )


def _split_by(source: Vocabulary) -> Vocabulary:
    """The vocabulary that splits the text of a source."""
    while isinstance(source, Featured | Normalized):
        source = source.base
    return source


def unknown_of_pair(
    source: Vocabulary, target: Vocabulary, pair: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """The parts of a source and of its target that a model neither knows nor can copy.

    >>> from ._vocabulary import Words
    >>> words = Words(["in"])
    >>> unknown_of_pair(*copying(words, words), ("in Rom", "Rom in Paris"))
    ([], ['Paris'])
    >>> unknown_of_pair(words, words, ("in Rom", "Rom in Paris"))
    (['Rom'], ['Rom', 'Paris'])
    """
    text, output = pair
    unknown, unknown_target = source.unknown(text), target.unknown(output)
    if not isinstance(source, CopyingSource):
        return unknown, unknown_target
    copyable = source.copyable(text)
    return unknown, [token for token in unknown_target if token not in copyable]
