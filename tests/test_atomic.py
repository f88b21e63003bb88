"""Atomic writes: all or nothing, through links, and never into what a link replaces."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fenchel._atomic import atomic_folder, atomic_write, check_writable, write_text


def test_links_in_place_of_temporary_files_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    (tmp_path / ".file.partial").symlink_to(precious)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "new"
    assert not (tmp_path / "file").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "precious"]
    assert precious.read_text(encoding="utf-8") == "kept"


def test_files_are_replaced_at_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before", encoding="utf-8")

    def fail() -> None:
        with atomic_write(path) as new:
            new.write_text("half", encoding="utf-8")
            assert path.read_text(encoding="utf-8") == "before"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_files_of_a_folder_appear_together_or_not_at_all(tmp_path: Path) -> None:
    folder, precious = tmp_path / "deep" / "folder", tmp_path / "precious"

    def write(text: str, *, is_failing: bool = False) -> None:
        with atomic_folder(folder) as new:
            for name in ("a", "b"):
                write_text(new / name, text)
            assert not is_failing, "the second step failed"

    with pytest.raises(AssertionError, match="the second step failed"):
        write("half", is_failing=True)
    assert list(tmp_path.iterdir()) == []
    write("old")
    write_text(folder / "c", "kept")
    precious.mkdir()
    write_text(precious / "a", "kept")
    (folder / ".partial").symlink_to(precious)
    with pytest.raises(AssertionError, match="the second step failed"):
        write("half", is_failing=True)
    names = ("a", "b", "c")
    assert [(folder / name).read_text(encoding="utf-8") for name in names] == ["old", "old", "kept"]
    write("new")
    assert [(folder / name).read_text(encoding="utf-8") for name in names] == ["new", "new", "kept"]
    assert sorted(path.name for path in folder.iterdir()) == [*names]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    assert (precious / "a").read_text(encoding="utf-8") == "kept"


def test_errors_of_the_system_name_what_was_to_be_written(tmp_path: Path) -> None:
    def fail(*names: Path) -> None:
        with atomic_folder(tmp_path / "folder") as new, atomic_write(new / "file"):
            raise OSError(errno.ENOSPC, "No space left on device", *names)

    for names, named in (
        ((), tmp_path / "folder" / "file"),
        ((tmp_path / ".folder.partial" / "a",), tmp_path / "folder" / "a"),
        ((tmp_path / "other",), tmp_path / "other"),
    ):
        with pytest.raises(OSError, match="No space left on device") as error:
            fail(*names)
        assert str(error.value.filename) == str(named)
    with pytest.raises(OSError, match=r"^nothing of the system$"), atomic_write(tmp_path / "file"):
        raise OSError("nothing of the system")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "kept")
    with (
        pytest.raises(NotADirectoryError, match="file is not a folder; choose another name"),
        atomic_folder(tmp_path / "file"),
    ):
        pass


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    write_text(link, "through")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "through"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "into")
    assert os.read(reader, 9) == b"into"
    os.close(reader)
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "real"]


def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        check_writable(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder .*deep does not exist; create it"):
        check_writable(tmp_path / "deep" / "file")
