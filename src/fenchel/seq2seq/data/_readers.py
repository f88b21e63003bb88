"""Readers of inflection files and of parallel text, line by line, with malformed lines reported."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..config._schema import DataConfig, ParallelFiles

LONGEST_LINE = 1 << 20
"""In bytes; a longer line is malformed, and not held in memory."""
MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
"""What text that is not UTF-8 may begin with; UTF-32's other mark begins with UTF-16's."""
SHOWN = 10
"""How many malformed lines a report quotes."""

Pair = tuple[str, str]
"""The text of a source, as its vocabulary encodes it, and of a target."""


class DataError(ValueError):
    """A file that cannot be read as what it should be."""


@dataclass
class Malformed:
    """What becomes of malformed lines: an error, or a count with the first few quoted.

    Args:
        skip: whether they are left out; else the first one raises `DataError`.
    """

    skip: bool = True
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, path: str, line: int, reason: str) -> None:
        """Notes a line, or raises."""
        message = f"{path}, line {line}: {reason}"
        if not self.skip:
            raise DataError(f"{message}.")
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(message)

    def __str__(self) -> str:
        rest = self.count - len(self.first)
        more = [f"and {rest} more"] if rest else []
        return "\n  ".join([f"skipped {self.count} malformed lines:", *self.first, *more])


def language_of(path: str) -> str:
    """The language that an inflection file is named after.

    >>> language_of("data/old-english-train-medium"), language_of("english.dev.txt")
    ('old-english', 'english')
    """
    name = Path(path).name
    return re.split(r"-(?:train|dev|test|covered|valid)|\.", name, maxsplit=1)[0]


def expand(patterns: Sequence[str]) -> list[str]:
    """The files that patterns with `*` name, each sorted by name.

    Raises:
        FileNotFoundError: if a pattern names none.
    """
    found: list[str] = []
    for pattern in patterns:
        named = glob.has_magic(pattern) and not Path(pattern).exists()
        paths = sorted(glob.glob(pattern)) if named else [pattern]
        if not paths:
            raise FileNotFoundError(f"no file is named like {pattern}.")
        found += paths
    return found


@contextmanager
def _opened(path: str) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, plain or gzip; it is opened once, for a pipe has no second beginning."""
    with open(path, "rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        with gzip.open(file, "rb") as inside:
            yield inside


def lines(path: str, malformed: Malformed) -> Iterator[tuple[int, str | None]]:
    """The numbered lines of a text file, plain or gzip; None for one that is malformed.

    Raises:
        DataError: where the compression is damaged, or the whole file is not UTF-8.
        OSError: where the file cannot be read.
    """
    number = 0
    with _opened(path) as file:
        while True:
            try:
                raw = file.readline(LONGEST_LINE + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{path} is damaged after line {number}: {error}.") from None
            if not raw:
                return
            number += 1
            if number == 1 and (raw.startswith(MARKS) or b"\0" in raw):
                raise DataError(
                    f"{path} is not UTF-8, but UTF-16 or the like; convert it with "
                    "`iconv -f UTF-16 -t UTF-8`."
                )
            if len(raw) > LONGEST_LINE:
                malformed.add(path, number, f"longer than {LONGEST_LINE} bytes")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LONGEST_LINE)
                yield number, None
                continue
            if b"\0" in raw:
                malformed.add(path, number, "a NUL character, as in UTF-16")
                yield number, None
                continue
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                malformed.add(path, number, f"not UTF-8 at byte {error.start + 1}")
                yield number, None


def _filled(columns: Sequence[str]) -> bool:
    """Whether no column is blank, and there is a tag in the last one."""
    *texts, tags = columns
    return all(text.strip() for text in (*texts, tags.replace(";", "")))


def inflections(
    paths: Sequence[str], malformed: Malformed, language: str | None = None
) -> Iterator[Pair]:
    """The pairs of inflection files of lines `lemma TAB form TAB tag;tag;…`.

    Args:
        paths: files, or patterns with `*`.
        malformed: what becomes of lines that are not like this.
        language: of all files; by default each is named after its own.
    Returns:
        `lemma TAB tags TAB language` and the form, one after the other.
    """
    for path in expand(paths):
        spoken = language or language_of(path)
        for number, line in lines(path, malformed):
            if line is None or not line:
                continue
            columns = line.split("\t")
            if len(columns) != 3:
                reason = f"expected 3 columns (lemma, form, tags), got {len(columns)}"
                malformed.add(path, number, reason)
            elif not _filled(columns):
                malformed.add(path, number, "a column is empty")
            else:
                lemma, form, tags = columns
                yield f"{lemma}\t{tags}\t{spoken}", form


def covered(path: str, malformed: Malformed, language: str | None = None) -> Iterator[str]:
    """The sources of a covered test file of lines `lemma TAB tag;tag;…`, as `inflections` has."""
    spoken = language or language_of(path)
    for number, line in lines(path, malformed):
        if line is None or not line:
            continue
        columns = line.split("\t")
        if len(columns) != 2 or not _filled(columns):
            malformed.add(path, number, "expected 2 columns (lemma, tags)")
        else:
            yield f"{columns[0]}\t{columns[1]}\t{spoken}"


def parallel(files: Sequence[ParallelFiles], malformed: Malformed) -> Iterator[Pair]:
    """The pairs of lines of parallel text; a pair with an empty or malformed side is malformed.

    Raises:
        DataError: if one file has more lines than the other.
    """
    for pair in files:
        targets = lines(pair.target, malformed)
        number = 0
        for number, source in lines(pair.source, malformed):
            _, target = next(targets, (0, ...))
            if target is ...:
                raise DataError(f"{pair.target} ends before line {number} of {pair.source}.")
            if source is None or target is None:
                continue
            source, target = source.strip(), target.strip()
            if source and target:
                yield source, target
            elif source or target:
                side = pair.target if source else pair.source
                malformed.add(side, number, "empty, while the other side is not")
        if next(targets, None) is not None:
            raise DataError(f"{pair.source} ends before line {number + 1} of {pair.target}.")


def paths(data: DataConfig, split: str) -> list[str]:
    """The files of the split "train" or "validation"."""
    files = getattr(data, split)
    if data.task == "inflection":
        return expand(files)
    return [path for pair in files for path in (pair.source, pair.target)]


def pairs(
    data: DataConfig, split: str, malformed: Malformed, language: str | None = None
) -> Iterator[Pair]:
    """The pairs of the split "train" or "validation"; of a language, if the data name none."""
    files = getattr(data, split)
    if data.task == "inflection":
        return inflections(files, malformed, data.language or language)
    return parallel(files, malformed)
