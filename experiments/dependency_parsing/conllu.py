"""Sentences in the CoNLL-U format, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import lines as lines_of
from ..files import write_lines

FORM, TAG, HEAD, RELATION, DEPS = 1, 3, 6, 7, 8


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence with their universal tags and heads, and its lines as they were."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    """The place of each word's head, from 1; 0 for the root, −1 where the file has none."""
    lines: tuple[str, ...]

    @property
    def code(self) -> list[int]:
        """Its tree as a code of `fenchel.DependencyTree`: heads from 0, the word itself if root."""
        return [word if head == 0 else max(head - 1, -1) for word, head in enumerate(self.heads)]


def read_conllu(path: Path) -> list[Sentence]:
    """The sentences of a file, plain or .gz; ranges of tokens and empty nodes are kept only to be
    written back.

    Raises:
        ValueError: for a line that is not CoNLL-U, with its number.
    """
    return list(_read(path))


def write_conllu(path: Path, sentences: Sequence[Sentence], codes: Iterable[Sequence[int]]) -> None:
    """Writes the sentences with other trees, given as codes; relations are left open."""
    text = []
    for sentence, code in zip(sentences, codes, strict=True):
        heads = (0 if head == word else head + 1 for word, head in enumerate(code))
        for line in sentence.lines:
            fields = line.split("\t")
            if fields[0].isdigit():
                fields[HEAD], fields[RELATION], fields[DEPS] = str(next(heads)), "_", "_"
            text.append("\t".join(fields))
        text.append("")
    write_lines(path, text)


def _read(path: Path) -> Iterator[Sentence]:
    lines: list[str] = []
    words: list[list[str]] = []
    for number, line in enumerate(lines_of(path), 1):
        if line:
            lines.append(line)
            if not line.startswith("#"):
                words += _word(line, f"{path.name}, line {number}")
        elif words:
            yield _sentence(words, lines, f"{path.name}, before line {number}")
            lines, words = [], []
    if words:
        yield _sentence(words, lines, f"{path.name}, at the end")


def _word(line: str, where: str) -> list[list[str]]:
    """The fields of a word's line, in a list; no fields for a range or an empty node."""
    fields = line.split("\t")
    if len(fields) != 10:
        raise ValueError(f"{where}: a line must have 10 fields, got {len(fields)}.")
    return [fields] if fields[0].isdigit() else []


def _sentence(words: list[list[str]], lines: list[str], where: str) -> Sentence:
    heads = tuple(int(word[HEAD]) if word[HEAD].isdigit() else -1 for word in words)
    if max(heads) > len(words):
        raise ValueError(f"{where}: a head is {max(heads)}, but there are {len(words)} words.")
    forms, tags = (tuple(word[field] for word in words) for field in (FORM, TAG))
    return Sentence(forms, tags, heads, tuple(lines))
