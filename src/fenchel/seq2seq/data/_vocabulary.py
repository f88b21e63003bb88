"""Vocabularies: text to token ids and back, by characters or words."""

from __future__ import annotations

import abc
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from .._files import digest
from ._codes import CODES

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""How a text shows a token that is not in the vocabulary."""
MAX_QUOTED = 80
"""How many characters of an input an error message quotes."""

_KINDS: dict[str, type[Vocabulary]] = {}


class Vocabulary(abc.ABC):
    """The tokens of one side of a model.

    Ids 0 to 3 are padding, begin, end and unknown in every vocabulary.

    >>> letters = Vocabulary.from_json({"kind": "characters", "tokens": ["a", "b"]})
    >>> letters.encode("abc"), letters.unknown("abc")
    ([4, 5, 3], ['c'])
    >>> letters.decode([4, 5, 2, 4])
    'ab'
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of ids."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end."""

    @abc.abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The name of each id, for a reader."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids up to the first end; padding and begin are skipped."""

    @property
    def is_unambiguous(self) -> bool:
        """Whether every text has one sequence of ids only, padding and begin aside."""
        return False

    @property
    def is_prefix_monotone(self) -> bool:
        """Whether the text of a sequence always begins with the texts of its prefixes."""
        return False

    def normalize(self, text: str) -> str:
        """The text as an output could spell it: a vocabulary that splits at spaces knows no others
        than single ones, and another may know only a normal form."""
        return text

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that `encode` takes for unknown tokens, in their order."""
        return [SPECIAL[UNK]] * self.encode(text).count(UNK)

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        """This vocabulary with tokens of another of its kind added, up to `size` ids in all. None
        of its own is lost. Subwords are what they are: they do not change."""
        return self

    def ids_in(self, extended: Vocabulary) -> list[int]:
        """The ids that this vocabulary's ids have in one that `extended` returned."""
        return list(range(self.size))

    def copyable(self, text: str) -> list[str | None]:
        """The tokens of a text that may be copied, one for each id; None where none may."""
        return [None] * len(self.encode(text))

    def copyable_tokens(self) -> list[str | None]:
        """The token of each id, if it may be copied."""
        return [None] * self.size

    @cached_property
    def digest(self) -> str:
        """A digest of all that `to_json` holds; equal vocabularies have equal digests."""
        return digest(json.dumps(self.to_json(), sort_keys=True))

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The vocabulary as JSON, for `from_json`."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Vocabulary:
        """The vocabulary of a value that `to_json` returned.

        Raises:
            ValueError: for any other value.
        """
        from . import _features, _inflection, _normalized, _subwords  # noqa: F401  register their kinds

        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in _KINDS:
            raise ValueError(
                f"a vocabulary's `kind` must be one of {', '.join(sorted(_KINDS))}, got {kind!r}."
            )
        rest = {key: part for key, part in value.items() if key != "kind"}
        try:
            return _KINDS[kind]._from_parts(**rest)
        except TypeError:
            raise ValueError(
                f"a vocabulary of kind {kind!r} does not hold {sorted(rest)}."
            ) from None

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        """The vocabulary of the parts in its JSON; raises a TypeError for other parts."""
        return cls(**parts)


def check_tokens(parts: dict[str, Any]) -> None:
    """Checks lists of tokens, which come from JSON.

    Raises:
        TypeError: if a part is not a list.
        ValueError: if a token is not a text, or stands twice in a list.
    """
    for name, tokens in parts.items():
        if not isinstance(tokens, list):
            raise TypeError
        seen = set[str]()
        for token in tokens:
            if not isinstance(token, str) or token in seen:
                wrong = "stands twice" if isinstance(token, str) else "is not a text"
                raise ValueError(f"`{name}` must hold different texts; {token!r} {wrong}.")
            seen.add(token)


def quoted(text: str) -> str:
    """The start of an input in quotation marks, for an error message."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def content_ids(ids: Sequence[int]) -> Iterator[int]:
    """The ids up to the first end, without padding and begin."""
    for index in ids:
        if index == EOS:
            return
        if index not in (PAD, BOS):
            yield index


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The `size` most frequent keys; those of equal frequency are in alphabetical order.

    The result does not depend on the order of the data.
    """
    return [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][
        : max(size, 0)
    ]


def with_new(old: Sequence[str], new: Iterable[str], size: int) -> list[str]:
    """All old tokens, and after them the first new ones that are not among them, up to `size`.

    >>> with_new(["a", "b"], ["c", "b", "d"], 3)
    ['a', 'b', 'c']
    """
    known = set(old)
    added = [token for token in new if token not in known]
    return [*old, *added[: max(size - len(old), 0)]]


class TokenList(Vocabulary):
    """A vocabulary that is a list of tokens."""

    separator: ClassVar[str]

    def __init__(self, tokens: Sequence[str]) -> None:
        self._names = [*SPECIAL, *tokens]
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIAL))}
        self._is_unambiguous = len(self._ids) == len(tokens) and all(map(self._is_distinct, tokens))

    def _is_distinct(self, token: str) -> bool:
        """Whether a token cannot be mistaken for several tokens, or for an unknown one."""
        is_single = self.separator not in token if self.separator else len(token) == 1
        return is_single and token not in ("", UNKNOWN)

    @staticmethod
    @abc.abstractmethod
    def split(text: str) -> Sequence[str]:
        """The tokens of a text."""

    @classmethod
    def build(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The vocabulary of the most frequent tokens, of up to `size` ids."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls.split(text))
        return cls(most_frequent(counts, size - len(SPECIAL)))

    @property
    def size(self) -> int:
        return len(self._names)

    @property
    def is_unambiguous(self) -> bool:
        return self._is_unambiguous

    @property
    def is_prefix_monotone(self) -> bool:
        return True

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        old, new = self._names[len(SPECIAL) :], other.tokens(range(len(SPECIAL), other.size))
        return type(self)(with_new(old, new, size - len(SPECIAL)))

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(token, UNK) for token in self.split(text)]

    def unknown(self, text: str) -> list[str]:
        return [token for token in self.split(text) if token not in self._ids]

    def copyable(self, text: str) -> list[str | None]:
        return list(map(copyable, self.split(text)))

    def copyable_tokens(self) -> list[str | None]:
        names = [*map(copyable, self._names[len(SPECIAL) :])]
        return [*[None] * len(SPECIAL), *names]

    @abc.abstractmethod
    def code(self, token: str) -> int:
        """A number below 2⁶⁰ for a token that is not in the vocabulary."""

    @abc.abstractmethod
    def of_code(self, code: int) -> str | None:
        """The token with this code, or None if there is none."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._names[index] for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(
            UNKNOWN if index == UNK else self._names[index] for index in content_ids(ids)
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": self._names[len(SPECIAL) :]}

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        check_tokens(parts)
        return cls(**parts)


def copyable(token: str) -> str | None:
    """A token, or None if it looks like an unknown one and so would make texts ambiguous."""
    return None if token == UNKNOWN else token


class Characters(TokenList):
    """The characters of a text.

    >>> letters = Characters("abc")
    >>> letters.encode("cab"), letters.decode([6, 4, 5])
    ([6, 4, 5], 'cab')
    """

    kind = "characters"
    separator = ""

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text

    def code(self, token: str) -> int:
        return ord(token)

    def of_code(self, code: int) -> str | None:
        return chr(code) if code <= sys.maxunicode else None


class Words(TokenList):
    """The words of a text, between spaces.

    >>> words = Words(["the", "cat"])
    >>> words.encode("the  cat sat"), words.decode([4, 5])
    ([4, 5, 3], 'the cat')
    """

    kind = "words"
    separator = " "

    def normalize(self, text: str) -> str:
        return self.separator.join(self.split(text))

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text.split()

    def code(self, token: str) -> int:
        return CODES.number(token)

    def of_code(self, code: int) -> str | None:
        return CODES.word(code)


class Symbols(Words):
    """Tokens that are given between spaces, such as phonemes.

    They are split as `Words` are. But all symbols of a text form one word, which matters to the
    word error rate.

    >>> phonemes = Symbols(["k", "æ", "t"])
    >>> phonemes.encode("k æ t"), phonemes.decode([4, 5, 6])
    ([4, 5, 6], 'k æ t')
    """

    kind = "symbols"
