"""Files: found by name, read plain or compressed, and never seen half written."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Writes a file that is never seen half written."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes lines of text, compressed if the name ends in .gz; the same lines, the same bytes."""
    content = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_all(output: Path, contents: Mapping[str, bytes]) -> None:
    """Writes files by name into a folder, or as an archive if the name ends in .tar.gz."""
    if not output.name.endswith(".tar.gz"):
        output.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write(output / name, content)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in sorted(contents.items()):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    write(output, gzip.compress(raw.getvalue(), mtime=0))


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file, plain or .gz, without their ends."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\r\n") for line in file)


def find(folder: Path, words: Sequence[str], suffixes: Sequence[str]) -> Path:
    """The one file of a folder whose name holds one of the words and ends in one of the suffixes.

    Raises:
        FileNotFoundError: if there is none, or more than one.
    """
    named = (path for path in sorted(folder.iterdir()) if path.suffix in suffixes)
    found = [path for path in named if any(word in path.name.lower() for word in words)]
    if len(found) != 1:
        endings = " or ".join(suffix or "nothing" for suffix in suffixes)
        expected = f"{' or '.join(words)}, ending in {endings}"
        raise FileNotFoundError(
            f"{folder} must hold one file named {expected}; found {[path.name for path in found]}."
        )
    return found[0]
