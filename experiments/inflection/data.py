"""The files of CoNLL-SIGMORPHON 2018 task 1, from its archive or an unpacked folder."""

from __future__ import annotations

import tarfile
from pathlib import Path

from ..files import lines


def unpacked(path: Path, into: Path) -> Path:
    """The folder with the files `LANGUAGE-train-SETTING`, `-dev` and `-covered-test`.

    Args:
        path: a folder, or an archive (`.tar.xz`, `.tar.gz`), which is unpacked once.
        into: where to.
    Raises:
        FileNotFoundError: if there are no such files.
    """
    if path.is_file():
        done = into / ".unpacked"
        if not done.exists():
            into.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path) as archive:
                archive.extractall(into, filter="data")
            done.touch()
        path = into
    found = sorted(path.rglob("*-dev"))
    if not found:
        raise FileNotFoundError(f"{path} holds no files named LANGUAGE-dev.")
    return found[0].parent


def languages(folder: Path, setting: str) -> list[str]:
    """The languages that have training data in a setting: high, medium or low."""
    ending = f"-train-{setting}"
    found = sorted(path.name[: -len(ending)] for path in folder.glob(f"*{ending}"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no files named LANGUAGE{ending}.")
    return found


def covered(folder: Path, language: str) -> list[str]:
    """The inputs of a language's covered test file, as a model reads them: lemma, tags, language.

    Raises:
        ValueError: for a line that is not `lemma TAB tags`, with its number.
    """
    path = folder / f"{language}-covered-test"
    sources = []
    for number, line in enumerate(lines(path), 1):
        if not line:
            continue
        lemma, *rest = line.split("\t")
        if len(rest) != 1 or not lemma.strip() or not rest[0].strip(" ;"):
            raise ValueError(f"{path}, line {number}: expected 2 columns (lemma, tags).")
        sources.append(f"{lemma}\t{rest[0]}\t{language}")
    return sources
