"""Atomic writes: a reader sees the old file or the new one, never a part of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` when the block ends without an error.

    The temporary path is always the same, so a process that is killed leaves one file, not many.
    A terminal, a pipe or /dev/null is written to directly. A symbolic link stays a link.

    Raises:
        OSError: as `check_writable` does.
    """
    check_writable(path)
    if path.exists() and not path.is_file():
        yield path
        return
    given, path = path, path.resolve()
    new = path.with_name(f".{path.name}.partial")
    new.unlink(missing_ok=True)  # left by a killed process, or a link, which is not followed
    with _named(given, new, new):
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield new
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(new, 0o666 & ~_umask())
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write files to; they go to `folder` when the block ends without an
    error, and otherwise nowhere.

    A folder that is missing appears at once. In one that exists, files of the same names are
    replaced one by one, and others stay.

    Raises:
        NotADirectoryError: if the path is something else than a folder.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; choose another name.")
    given, folder = folder, folder.resolve()
    is_new = not folder.exists()
    new = folder.with_name(f".{folder.name}.partial") if is_new else folder / ".partial"
    if new.is_symlink():  # which is not followed
        new.unlink()
    shutil.rmtree(new, ignore_errors=True)  # left by a killed process
    missing = [each for each in new.parents if not each.exists()]
    try:
        with _named(given, new):
            new.mkdir(parents=True)
            yield new
            if is_new:
                os.replace(new, folder)
            else:
                for path in sorted(new.iterdir()):
                    os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        for each in missing:
            with suppress(OSError):  # the new folder is in it
                each.rmdir()


@contextmanager
def _named(path: Path, new: Path, default: Path | None = None) -> Iterator[None]:
    """Errors of the system that name the temporary path `new`, or a file in it, name `path`.

    One that names no file, such as that of a full disk, is taken to name `default`.
    """
    try:
        yield
    except OSError as error:
        name = error.filename or default
        if error.strerror is not None and name is not None and Path(str(name)).is_relative_to(new):
            error.filename = str(path / Path(str(name)).relative_to(new))
        raise


def check_writable(path: Path) -> None:
    """Checks that a file can be written, before a long computation whose result goes there.

    Raises:
        OSError: if the path is a folder, or its own folder is missing or not writable.
    """
    folder = path.parent
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it.")
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first.")
    if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {folder} is not writable; choose another.")


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with atomic_write(path) as new:
        new.write_text(text, encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
