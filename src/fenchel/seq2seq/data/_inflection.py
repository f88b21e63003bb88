"""The source of inflection as tokens: a language, tags, and the characters of a lemma."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ._vocabulary import (
    SPECIAL,
    UNK,
    UNKNOWN,
    Vocabulary,
    check_tokens,
    content_ids,
    copyable,
    most_frequent,
    quoted,
    with_new,
)


class Inflection(Vocabulary):
    """The source of inflection: a language, tags, and the characters of a lemma.

    A text is `lemma TAB tags` or `lemma TAB tags TAB language`, with semicolons between tags. A
    text without tabs ends in the tags, and may have the language after them: `draw V;PST`, or
    `draw V;PST english`. The language may be left out if the vocabulary has only one.

    >>> known = Inflection(["english"], ["PST", "V"], list("adrw"))
    >>> known.tokens(known.encode("draw V;PST"))
    ['<english>', 'V', 'PST', 'd', 'r', 'a', 'w']
    """

    kind = "inflection"

    def __init__(
        self, languages: Sequence[str], tags: Sequence[str], characters: Sequence[str]
    ) -> None:
        self.languages = list(languages)
        """The names of the languages."""
        self._tags, self._characters = list(tags), list(characters)
        language_names = [f"<{language}>" for language in languages]
        self._names = [*SPECIAL, *language_names, *tags, *characters]
        first = len(SPECIAL)
        self._language_ids = {name: i for i, name in enumerate(languages, first)}
        first += len(self.languages)
        self._tag_ids = {tag: i for i, tag in enumerate(tags, first)}
        first += len(self._tags)
        self._character_ids = {character: i for i, character in enumerate(characters, first)}

    @classmethod
    def build(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """All languages and tags, and the most frequent characters, of up to `size` ids."""
        languages, tags, characters = set[str](), set[str](), Counter[str]()
        for text in texts:
            lemma, bundle, language = _columns(text)
            characters.update(lemma)
            tags.update(_split_tags(bundle))
            languages.add(language or "")
        num_characters = size - len(SPECIAL) - len(languages) - len(tags)
        if characters and num_characters < 1:
            raise ValueError(
                f"{len(languages)} languages and {len(tags)} tags leave no room for characters in "
                f"{size} tokens; raise `data.vocabulary_size`."
            )
        return cls(sorted(languages), sorted(tags), most_frequent(characters, num_characters))

    def extended(self, other: Vocabulary, size: int) -> Vocabulary:
        if not isinstance(other, Inflection):
            return self
        languages = with_new(self.languages, other.languages, size)
        tags = with_new(self._tags, other._tags, size)
        room = size - len(SPECIAL) - len(languages) - len(tags)
        return Inflection(languages, tags, with_new(self._characters, other._characters, room))

    def ids_in(self, extended: Vocabulary) -> list[int]:
        if not isinstance(extended, Inflection):
            return super().ids_in(extended)
        return [
            *range(len(SPECIAL)),
            *(extended._language_ids[language] for language in self.languages),
            *(extended._tag_ids[tag] for tag in self._tags),
            *(extended._character_ids[character] for character in self._characters),
        ]

    @property
    def size(self) -> int:
        return len(self._names)

    @property
    def is_prefix_monotone(self) -> bool:
        return True

    def encode(self, text: str) -> list[int]:
        lemma, bundle, language = _columns(text, self._language_ids)
        if language is None:
            if len(self.languages) != 1:
                raise ValueError(
                    f"name the language of {quoted(text)} after the tags: one of "
                    f"{', '.join(self.languages)}."
                )
            language = self.languages[0]
        elif language not in self._language_ids:
            raise ValueError(
                f"the language {language!r} of {quoted(text)} is not one that the model knows: "
                f"{', '.join(self.languages)}."
            )
        return [
            self._language_ids[language],
            *(self._tag_ids.get(tag, UNK) for tag in _split_tags(bundle)),
            *(self._character_ids.get(character, UNK) for character in lemma),
        ]

    def unknown(self, text: str) -> list[str]:
        lemma, bundle, _ = _columns(text, self._language_ids)
        tags = [tag for tag in _split_tags(bundle) if tag not in self._tag_ids]
        return [*tags, *(each for each in lemma if each not in self._character_ids)]

    def copyable(self, text: str) -> list[str | None]:
        """The characters of the lemma; neither the language nor tags."""
        lemma, bundle, _ = _columns(text, self._language_ids)
        return [*[None] * (1 + len(_split_tags(bundle))), *map(copyable, lemma)]

    def copyable_tokens(self) -> list[str | None]:
        first = self.size - len(self._characters)
        return [*[None] * first, *map(copyable, self._characters)]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._names[index] for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The lemma."""
        first = self.size - len(self._characters)
        return "".join(
            UNKNOWN if index == UNK else self._names[index]
            for index in content_ids(ids)
            if index == UNK or index >= first
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "languages": self.languages,
            "tags": self._tags,
            "characters": self._characters,
        }

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        check_tokens(parts)
        return cls(**parts)


def only_language(vocabulary: Vocabulary) -> str | None:
    """The language of a vocabulary that has only one; None for any other vocabulary."""
    names: list[str] = getattr(vocabulary, "languages", [])
    return names[0] if len(names) == 1 else None


def _split_tags(bundle: str) -> list[str]:
    return [tag.strip() for tag in bundle.split(";") if tag.strip()]


def _columns(text: str, languages: Iterable[str] = ()) -> tuple[str, str, str | None]:
    """The lemma, the tags and the language of a text; None for a language that it does not name."""
    if "\t" in text:
        lemma, bundle, *rest = text.split("\t")
        if len(rest) > 1 or not lemma.strip() or not _split_tags(bundle):
            raise ValueError(f"expected `lemma TAB tags TAB language`, got {quoted(text)}.")
        return lemma, bundle, rest[0] if rest else None
    words = text.split(" ")
    language = words.pop() if len(words) > 2 and words[-1] in languages else None
    if not "".join(words[:-1]) or not _split_tags(words[-1]):
        raise ValueError(f"expected a lemma and tags, such as `draw V;PST`, got {quoted(text)}.")
    return " ".join(words[:-1]), words[-1], language
