"""Readers: what they yield, and what they report, with file and line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from threading import Thread

import pytest

from fenchel.seq2seq.config._data import ParallelFiles
from fenchel.seq2seq.data import _lines, _readers
from fenchel.seq2seq.data._readers import DataError, Malformed, inflections, parallel


def inflection_file(folder: Path, content: bytes) -> str:
    path = folder / "english-train-low"
    path.write_bytes(content)
    return str(path)


def test_inflections(tmp_path: Path) -> None:
    content = "\ufeffdraw\tdrew\tV;PST\r\n\nzum Baum\tzum Baume\tN;DAT".encode()
    path = inflection_file(tmp_path, content)
    malformed = Malformed()
    found = list(inflections([path], malformed))
    assert found == [("draw\tV;PST\tenglish", "drew"), ("zum Baum\tN;DAT\tenglish", "zum Baume")]
    assert malformed.count == 0
    assert next(inflections([path], malformed, "dutch"))[0] == "draw\tV;PST\tdutch"


def test_malformed_lines_are_reported_with_file_and_line(tmp_path: Path) -> None:
    content = b"a\tb\tV\nno tabs\n\xff\tb\tV\n\tb\tV\nc\td\tV\n"
    path = inflection_file(tmp_path, content)
    malformed = Malformed()
    assert [form for _, form in inflections([path], malformed)] == ["b", "d"]
    assert malformed.count == 3
    assert malformed.first == [
        f"{path}, line 2: expected 3 columns (lemma, form, tags), got 1",
        f"{path}, line 3: not UTF-8 at byte 1",
        f"{path}, line 4: a column is empty",
    ]
    with pytest.raises(DataError, match=r"line 2: expected 3 columns .* got 1\."):
        list(inflections([path], Malformed(skip=False)))


def test_a_bundle_without_tags_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "english-train"
    path.write_text("walk\twalked\t;\nwalk\twalks\tV;3\n", encoding="utf-8")
    malformed = Malformed()
    assert len(list(inflections([str(path)], malformed))) == 1
    assert malformed.first == [f"{path}, line 1: a column is empty"]


def test_many_malformed_lines_are_counted(tmp_path: Path) -> None:
    malformed = Malformed()
    assert not list(inflections([inflection_file(tmp_path, b"x\n" * 25)], malformed))
    assert malformed.count == 25
    assert "skipped 25 malformed lines" in str(malformed)
    assert "and 15 more" in str(malformed)


def test_endless_lines_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 10)
    malformed = Malformed()
    path = inflection_file(tmp_path, b"a\tb\tV\n" + b"x" * 95 + b"\nc\td\tV\n")
    assert [form for _, form in inflections([path], malformed)] == ["b", "d"]
    assert malformed.first == [f"{path}, line 2: longer than 10 bytes"]


def test_patterns_name_files(tmp_path: Path) -> None:
    for name in ("b-dev", "a-dev", "a-train"):
        (tmp_path / name).touch()
    found = _readers.expand([str(tmp_path / "*-dev"), str(tmp_path / "a-train")])
    assert [Path(path).name for path in found] == ["a-dev", "b-dev", "a-train"]
    with pytest.raises(FileNotFoundError, match="no file matches"):
        _readers.expand([str(tmp_path / "*.txt")])


def test_a_name_with_brackets_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "verbs[1].tsv"
    path.touch()
    assert _readers.expand([str(path)]) == [str(path)]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("old-church-slavonic-train-medium", "old-church-slavonic"),
        ("french-covered-test", "french"),
        ("x/english.train.tsv", "english"),
        ("norwegian-nynorsk-dev", "norwegian-nynorsk"),
    ],
)
def test_files_are_named_after_their_language(name: str, language: str) -> None:
    assert _readers.language_of(name) == language


def texts(folder: Path, source: bytes, target: bytes, *, compress: bool = False) -> ParallelFiles:
    pack = gzip.compress if compress else bytes
    (folder / "source").write_bytes(pack(source))
    (folder / "target").write_bytes(pack(target))
    return ParallelFiles(source=str(folder / "source"), target=str(folder / "target"))


@pytest.mark.parametrize("compress", [False, True])
def test_parallel_text(tmp_path: Path, compress: bool) -> None:
    files = texts(
        tmp_path, b"eins\n\nzwei \n\xff\nvier\n", b"one\n\ntwo\nthree\n\n", compress=compress
    )
    malformed = Malformed()
    assert list(parallel([files], malformed)) == [("eins", "one"), ("zwei", "two")]
    assert malformed.first == [
        f"{files.source}, line 4: not UTF-8 at byte 1",
        f"{files.target}, line 5: empty, while the other side is not",
    ]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\n", b"a\n", "target ends before line 2 of .*source"),
        (b"a\n", b"a\nb\n", "source ends before line 2 of .*target"),
    ],
)
def test_files_of_unequal_lengths_are_refused(
    tmp_path: Path, source: bytes, target: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(parallel([texts(tmp_path, source, target)], Malformed()))


@pytest.mark.parametrize("compress", [False, True])
def test_pipes_are_read_from_their_beginning(tmp_path: Path, compress: bool) -> None:
    pipe, text = tmp_path / "pipe", b"walk\twalked\tV;PST\n" * 3
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(gzip.compress(text) if compress else text,))
    writer.start()
    found = list(inflections([str(pipe)], Malformed(skip=False), "english"))
    writer.join()
    assert found == [("walk\tV;PST\tenglish", "walked")] * 3


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("compress", [False, True])
def test_other_encodings_are_refused_with_the_remedy(
    tmp_path: Path, coding: str, compress: bool
) -> None:
    content = "walk\twalked\tV;PST\n".encode(coding) * 2
    path = inflection_file(tmp_path, gzip.compress(content) if compress else content)
    with pytest.raises(DataError, match=r"train-low is not UTF-8, .* `iconv -f UTF-16 -t UTF-8`"):
        list(inflections([path], Malformed()))


@pytest.mark.parametrize("line", [1, 2])
def test_a_nul_is_named_with_its_line(tmp_path: Path, line: int) -> None:
    malformed = Malformed()
    rows = [b"a\tb\tV\n", b"c\x00\td\tV\n"]
    path = inflection_file(tmp_path, b"".join(rows if line == 2 else reversed(rows)))
    assert [form for _, form in inflections([path], malformed)] == ["b"]
    assert malformed.first == [f"{path}, line {line}: a NUL at byte 2, as in a binary file"]


def test_a_short_file_with_one_nul_is_not_utf_16(tmp_path: Path) -> None:
    path = inflection_file(tmp_path, b"\x00\n")
    with pytest.raises(
        DataError, match=r"train-low, line 1: a NUL at byte 1, as in a binary file\.$"
    ):
        list(inflections([path], Malformed(skip=False)))


def test_damaged_compression_is_an_error(tmp_path: Path) -> None:
    files = texts(tmp_path, b"a\n" * 9999, b"b\n" * 9999, compress=True)
    whole = Path(files.source).read_bytes()
    Path(files.source).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="source is damaged after line"):
        list(parallel([files], Malformed()))
