"""Readers of tables, inflection files and parallel text, which report malformed lines."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..config._data import ColumnsConfig, DataConfig, ParallelFiles
from ._lines import decode_line, read_lines
from ._tables import HeaderError, Table, is_json

BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
"""Those of UTF-16 and UTF-32; the little-endian mark of UTF-32 begins with that of UTF-16."""
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
"""What is raised for a damaged gzip file."""
MAX_QUOTED = 10
"""How many malformed lines a report quotes."""

Pair = tuple[str, str]
"""The texts of a source and a target, as their vocabularies encode them."""


class DataError(ValueError):
    """A data file that is damaged, or not in the expected format."""


@dataclass
class Malformed:
    """A report of malformed lines: their number, and the first few of them.

    Args:
        skip: whether malformed lines are left out; otherwise the first one raises `DataError`.
    """

    skip: bool = True
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, path: str, line: int, reason: str) -> None:
        """Reports a line, or raises."""
        message = f"{path}, line {line}: {reason}"
        if not self.skip:
            raise DataError(f"{message}.")
        self.count += 1
        if len(self.first) < MAX_QUOTED:
            self.first.append(message)

    def __str__(self) -> str:
        rest = self.count - len(self.first)
        more = [f"and {rest} more"] if rest else []
        return "\n  ".join([f"skipped {self.count} malformed lines:", *self.first, *more])


@dataclass
class LastMalformed(Malformed):
    """The last malformed line alone, for a caller who reports each of them."""

    reason: str = ""

    def add(self, path: str, line: int, reason: str) -> None:
        self.reason = f"{path}: {reason}"

    def take(self) -> str:
        """The reason since this was last called, or nothing."""
        taken, self.reason = self.reason, ""
        return taken


def language_of(path: str) -> str:
    """The language that an inflection file is named after.

    >>> language_of("data/old-english-train-medium"), language_of("english.dev.txt")
    ('old-english', 'english')
    """
    name = Path(path).name
    return re.split(r"-(?:train|dev|test|covered|valid)|\.", name, maxsplit=1)[0]


def expand(patterns: Sequence[str]) -> list[str]:
    """The files that match patterns with `*`, sorted by name within each pattern.

    Raises:
        FileNotFoundError: if a pattern matches no file.
    """
    found: list[str] = []
    for pattern in patterns:
        is_pattern = glob.has_magic(pattern) and not Path(pattern).exists()
        paths = sorted(glob.glob(pattern)) if is_pattern else [pattern]
        if not paths:
            raise FileNotFoundError(f"no file matches {pattern}.")
        found += paths
    return found


@contextmanager
def open_text(path: str) -> Iterator[io.BufferedIOBase]:
    """Opens a file, plain or gzip, once: a pipe cannot be opened again."""
    with open(path, "rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        with gzip.open(file, "rb") as inside:
            yield inside


def lines(path: str, malformed: Malformed) -> Iterator[tuple[int, str | None]]:
    """The numbered lines of a text file, plain or gzip; None for one that is malformed.

    Raises:
        DataError: if the compression is damaged, or the whole file is not UTF-8.
        OSError: if the file cannot be read.
    """
    number = 0
    with open_text(path) as file:
        try:
            for number, raw in enumerate(read_lines(file), start=1):
                if number == 1:
                    _check_encoding(path, raw)
                try:
                    text = decode_line(raw, number)
                except ValueError as error:
                    malformed.add(path, number, str(error))
                    text = None
                yield number, text
        except DAMAGE as error:
            raise DataError(f"{path} is damaged after line {number}: {error}.") from None


def _check_encoding(path: str, line: bytes) -> None:
    """Raises if the first line is UTF-16 or UTF-32: it has a mark, or NULs for a third of it."""
    count = line.count(0)
    if line.startswith(BYTE_ORDER_MARKS) or (count > 1 and 3 * count >= len(line)):
        raise DataError(
            f"{path} is not UTF-8, but UTF-16 or UTF-32; convert it with "
            "`iconv -f UTF-16 -t UTF-8`."
        )


def _is_filled(columns: Sequence[str]) -> bool:
    """Whether no column is blank, and the last one has a tag."""
    *texts, tags = columns
    return all(text.strip() for text in (*texts, tags.replace(";", "")))


def _rows(path: str, parse: Callable[[str], Pair | None], malformed: Malformed) -> Iterator[Pair]:
    """The pairs of a file's lines, without blank ones and those that `parse` returns None for.

    Raises:
        DataError: if the header does not fit.
    """
    for number, line in lines(path, malformed):
        if not line:
            continue
        try:
            pair = parse(line)
        except HeaderError as error:
            raise DataError(f"{path}, line {number}: {error}.") from None
        except ValueError as error:
            malformed.add(path, number, str(error))
        else:
            if pair is not None:
                yield pair


def tables(paths: Sequence[str], columns: ColumnsConfig, malformed: Malformed) -> Iterator[Pair]:
    """The pairs of tables.

    Args:
        paths: files, or patterns with `*`.
        columns: where they have their sources and targets.
        malformed: gets the lines of another format.
    """
    for path in expand(paths):
        try:
            table = Table(columns, json=is_json(path, columns))
        except HeaderError as error:
            raise DataError(f"{path}: {error}.") from None
        yield from _rows(path, table.parse, malformed)


def inflection_parser(language: str) -> Callable[[str], Pair]:
    """Parses lines `lemma TAB form TAB tag;tag;…` of a language, for `inflections`."""

    def parse(line: str) -> Pair:
        columns = line.split("\t")
        if len(columns) != 3:
            raise ValueError(f"expected 3 columns (lemma, form, tags), got {len(columns)}")
        if not _is_filled(columns):
            raise ValueError("a column is empty")
        lemma, form, tags = columns
        return f"{lemma}\t{tags}\t{language}", form

    return parse


def inflections(
    paths: Sequence[str], malformed: Malformed, language: str | None = None
) -> Iterator[Pair]:
    """The pairs of inflection files of lines `lemma TAB form TAB tag;tag;…`.

    Args:
        paths: files, or patterns with `*`.
        malformed: gets the lines of another format.
        language: of all files; by default each file name says its language.
    Yields:
        `lemma TAB tags TAB language`, and the form.
    """
    for path in expand(paths):
        yield from _rows(path, inflection_parser(language or language_of(path)), malformed)


def numbered_parallel(pair: ParallelFiles, malformed: Malformed) -> Iterator[tuple[int, str, str]]:
    """The numbered lines of two files of parallel text; both are empty if one is malformed.

    A pair with one empty side is malformed.

    Raises:
        DataError: if one file has more lines than the other.
    """
    targets = lines(pair.target, malformed)
    number = 0
    for number, source in lines(pair.source, malformed):
        _, target = next(targets, (0, ...))
        if target is ...:
            raise DataError(f"{pair.target} ends before line {number} of {pair.source}.")
        if source is None or target is None:
            yield number, "", ""
            continue
        source, target = source.strip(), target.strip()
        if bool(source) != bool(target):
            side = pair.target if source else pair.source
            malformed.add(side, number, "empty, while the other side is not")
            source = target = ""
        yield number, source, target
    if next(targets, None) is not None:
        raise DataError(f"{pair.source} ends before line {number + 1} of {pair.target}.")


def parallel(files: Sequence[ParallelFiles], malformed: Malformed) -> Iterator[Pair]:
    """The pairs of lines of parallel text, without those that are empty or malformed."""
    for pair in files:
        for _, source, target in numbered_parallel(pair, malformed):
            if source:
                yield source, target


def paths(data: DataConfig, split: str) -> list[str]:
    """The files of the split "train" or "validation"."""
    files = getattr(data, split)
    if data.has_tables:
        return expand(files)
    return [path for pair in files for path in (pair.source, pair.target)]


def pairs(
    data: DataConfig, split: str, malformed: Malformed, language: str | None = None
) -> Iterator[Pair]:
    """The pairs of the split "train" or "validation".

    Args:
        data: the section of the configuration.
        split: "train" or "validation".
        malformed: gets the malformed lines.
        language: of inflection files, if the configuration names none.
    """
    files = getattr(data, split)
    if data.task == "inflection":
        return inflections(files, malformed, data.language or language)
    if data.has_tables:
        return tables(files, data, malformed)
    return parallel(files, malformed)
