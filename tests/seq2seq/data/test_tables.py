"""Tables: columns by number and by name, JSON lines, and what is said of lines that do not fit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fenchel.seq2seq.config._data import ColumnsConfig
from fenchel.seq2seq.data import _lines
from fenchel.seq2seq.data._readers import DataError, Malformed, tables
from fenchel.seq2seq.data._tables import HeaderError, Table, is_json


def read(
    path: Path, content: str | bytes, **columns: Any
) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs of a file, and what is said of its malformed lines, without its name."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    malformed = Malformed()
    found = list(tables([str(path)], ColumnsConfig(**columns), malformed))
    return found, [text.removeprefix(f"{path}, ") for text in malformed.first]


def test_columns_by_number(tmp_path: Path) -> None:
    content = "1\tʁ u\troue\tN;F\n\n2\ta\tas\tN; M PL\n"
    found, said = read(tmp_path / "a.tsv", content, source=3, target=2, features=4)
    assert (found, said) == ([("roue\tN;F", "ʁ u"), ("as\tN;M;PL", "a")], [])
    assert read(tmp_path / "b", "roue\tʁ u\textra\n")[0] == [("roue", "ʁ u")]


def test_columns_by_name(tmp_path: Path) -> None:
    content = "\ufeffphones\tid\tword\r\nʁ u\t1\troue\r\n"
    assert read(tmp_path / "a.tsv", content, source="word", target="phones") == (
        [("roue", "ʁ u")],
        [],
    )
    assert read(tmp_path / "a.tsv", content, source="word", target=1)[0] == [("roue", "ʁ u")]
    assert read(tmp_path / "a.tsv", content, source=3, target=1, header=True)[0] == [
        ("roue", "ʁ u")
    ]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("roue\tʁ u", "line 1: the header has no column 'word' for the source; .* 'roue', 'ʁ u'"),
        ("word\tword\tphones", "line 1: the header has two of 'word' for the source"),
        ("x\t" * 50 + "y", r"its columns are ('x', ){12}…\."),
    ],
)
def test_a_header_that_does_not_fit_is_an_error(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.tsv", f"{header}\nroue\tʁ u\n", source="word", target="phones")


def test_text_is_not_changed(tmp_path: Path) -> None:
    text = ' "a  e\u0301\u00a0'
    assert read(tmp_path / "a.tsv", f"{text}\tb\n")[0] == [(text, "b")]
    line = json.dumps({"source": text, "target": "b"}, ensure_ascii=False)
    assert read(tmp_path / "a.jsonl", f"{line}\n")[0] == [(text, "b")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("roue", "the target is column 2, and the line has 1 column, without a tab"),
        ("roue\tʁ u", "the features are column 4, and the line has 2 columns"),
        ("\tʁ u\t\tN", "the source is empty"),
        ("roue\t \t\tN", "the target is empty"),
        ("roue\tʁ u\t\t; ;", "the features are empty"),
        (
            "ro\rue\tʁ u\t\tN",
            "there is a line break in the source, which an output of one line cannot hold",
        ),
    ],
)
def test_malformed_lines(tmp_path: Path, line: str, reason: str) -> None:
    content = f"a\tb\tc\td\n{line}\ne\tf\tg\th\n"
    found, said = read(tmp_path / "a.tsv", content, features=4)
    assert found == [("a\td", "b"), ("e\th", "f")]
    assert said[0].startswith(f"line 2: {reason}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "{",
            "not a JSON object on one line: Expecting property name",
        ),
        ("[1]", "not a JSON object on one line, but a list"),
        ("3", "not a JSON object on one line, but a number"),
        ("null", "not a JSON object on one line, but null"),
        ('{"source": "a"}', "no key 'target'; the keys are 'source'"),
        ('{"source": 3, "target": "b"}', "the source is a number, and must be a text in quotes"),
        (
            '{"source": true, "target": "b"}',
            "the source is true or false, and must be a text in qu",
        ),
        ('{"source": null, "target": "b"}', "the source is null"),
        ('{"source": {"a": 1}, "target": "b"}', "the source is an object, and must be a text in"),
        ('{"source": ["a"], "target": "b"}', "the source is a list, and must be a text in quotes"),
        ('{"source": "a\\tb", "target": "b"}', "there is a tab in the source, which an output of"),
        ('{"source": "a", "target": "b\\nc"}', "there is a line break in the target"),
        ('{"source": "a\\u0000", "target": "b"}', "there is a NUL in the source"),
        ('{"source": "\\ud800", "target": "b"}', "there is half of a surrogate pair in the source"),
        ('{"source": "", "target": "b"}', "the source is empty"),
        ("[" * 100_000, "not JSON that can be read: it nests too deep, or is too long"),
        ("9" * 10_000, "not JSON that can be read: it nests too deep, or is too long"),
    ],
)
def test_malformed_json(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"source": "a", "target": "b", "other": [null, {}]}'
    found, said = read(tmp_path / "a.jsonl", f"{good}\n{line}\n{good}\n")
    assert found == [("a", "b")] * 2
    (one,) = said
    assert one.startswith(f"line 2: {reason}")


def test_features_of_json_are_a_text_or_a_list(tmp_path: Path) -> None:
    for features in ("N;PL", "N PL", ["N", "PL"]):
        line = json.dumps({"word": "a", "form": "b", "tags": features})
        found, said = read(
            tmp_path / "a.ndjson", f"{line}\n", source="word", target="form", features="tags"
        )
        assert (found, said) == ([("a\tN;PL", "b")], [])
    for features, reason in ([[], "the features are empty"], [[3], "the features are a number"]):
        line = json.dumps({"source": "a", "target": "b", "tags": features})
        _, said = read(tmp_path / "a.json", f"{line}\n", features="tags")
        assert said[0].startswith(f"line 1: {reason}")


def test_the_format_is_that_of_the_ending_unless_it_is_given(tmp_path: Path) -> None:
    assert is_json("a.jsonl.gz", ColumnsConfig())
    assert is_json("a.JSON", ColumnsConfig())
    assert not is_json("a.tsv", ColumnsConfig())
    assert not is_json("a.json", ColumnsConfig(format="tsv"))
    line = b'{"source": "a", "target": "b"}\n'
    assert read(tmp_path / "a.txt", gzip.compress(line), format="json")[0] == [("a", "b")]
    with pytest.raises(DataError, match=r"a.json: JSON has keys and no column 1; give the key of"):
        read(tmp_path / "a.json", line, source=1)
    with pytest.raises(HeaderError):
        Table(ColumnsConfig(target=3), json=True)
    assert Table(ColumnsConfig(target=3), json=True, has_target=False).parse(line.decode()) == (
        "a",
        "",
    )


def test_odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path / "empty", "") == ([], [])
    assert read(tmp_path / "empty", "", source="word", target="phones") == ([], [])
    assert read(tmp_path / "crlf", "a\tb\r\n\r\nc\td\r\n") == ([("a", "b"), ("c", "d")], [])
    found, said = read(tmp_path / "bad", b"a\tb\nc\xff\td\ne\x00\tf\ng\th")
    assert found == [("a", "b"), ("g", "h")]
    assert said == ["line 2: not UTF-8 at byte 2", "line 3: a NUL at byte 2, as in a binary file"]
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 10)
    found, said = read(tmp_path / "long", "a\tb\n" + "x" * 99 + "\tb\nc\td\n")
    assert (found, said) == ([("a", "b"), ("c", "d")], ["line 2: longer than 10 bytes"])


def test_an_unreadable_header_is_an_error(tmp_path: Path) -> None:
    content = b"w\xffrd\tphones\nroue\tr u\n"
    with pytest.raises(DataError, match="line 2: the header has no column 'word'"):
        read(tmp_path / "a.tsv", content, source="word", target="phones")
