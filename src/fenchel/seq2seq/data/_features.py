"""A source with features: a token for each feature, and the tokens of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ._tables import split_features
from ._vocabulary import (
    UNK,
    Vocabulary,
    check_tokens,
    content_ids,
    most_frequent,
    quoted,
    with_new,
)


class Featured(Vocabulary):
    """Features and text: a source is `text TAB feature;feature;…`, the features come first.

    Args:
        base: splits the text; the features' ids follow those of its tokens.
        features: their names.

    >>> from fenchel.seq2seq import Characters
    >>> known = Featured(Characters("abc"), ["PST", "V"])
    >>> known.tokens(known.encode("cab\\tV;PST"))
    ['V', 'PST', 'c', 'a', 'b']
    """

    kind = "featured"

    def __init__(self, base: Vocabulary, features: Sequence[str]) -> None:
        self.base, self.features = base, list(features)
        self._ids = {name: index for index, name in enumerate(features, start=base.size)}

    @classmethod
    def names(cls, texts: Iterable[str], size: int) -> list[str]:
        """The names of the most frequent features of sources, up to `size`."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_parts(text)[1])
        return most_frequent(counts, size)

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        if not isinstance(other, Featured):
            return self
        features = with_new(self.features, other.features, size)
        return Featured(self.base.extended(other.base, size - len(features)), features)

    def ids_in(self, extended: Vocabulary) -> list[int]:
        if not isinstance(extended, Featured):
            return super().ids_in(extended)
        return [*self.base.ids_in(extended.base), *(extended._ids[each] for each in self.features)]

    def copyable(self, text: str) -> list[str | None]:
        """The tokens of the text, and no features."""
        rest, features = _parts(text)
        return [*[None] * len(features), *self.base.copyable(rest)]

    def copyable_tokens(self) -> list[str | None]:
        return [*self.base.copyable_tokens(), *[None] * len(self.features)]

    @property
    def size(self) -> int:
        return self.base.size + len(self.features)

    @property
    def is_prefix_monotone(self) -> bool:
        return self.base.is_prefix_monotone

    def normalize(self, text: str) -> str:
        rest, features = _parts(text)
        return f"{self.base.normalize(rest)}\t{';'.join(features)}"

    def encode(self, text: str) -> list[int]:
        rest, features = _parts(text)
        return [*(self._ids.get(each, UNK) for each in features), *self.base.encode(rest)]

    def unknown(self, text: str) -> list[str]:
        rest, features = _parts(text)
        return [*(each for each in features if each not in self._ids), *self.base.unknown(rest)]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        first = self.base.size
        return [
            self.features[index - first] if index >= first else self.base.tokens([index])[0]
            for index in ids
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without its features."""
        return self.base.decode([index for index in content_ids(ids) if index < self.base.size])

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "base": self.base.to_json(), "features": self.features}

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        if set(parts) != {"base", "features"}:
            raise TypeError
        check_tokens({"features": parts["features"]})
        return cls(Vocabulary.from_json(parts["base"]), parts["features"])


def texts_of(sources: Iterable[str]) -> Iterator[str]:
    """The texts of sources with features."""
    return (_parts(source)[0] for source in sources)


def _parts(source: str) -> tuple[str, list[str]]:
    """The text and the features of a source."""
    text, tab, features = source.rpartition("\t")
    found = split_features(features)
    if not tab or not text.strip() or not found:
        raise ValueError(f"expected `text TAB feature;feature;…`, got {quoted(source)}.")
    return text, found
