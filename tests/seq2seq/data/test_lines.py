"""Lines of files and streams: whole, in order, bounded, and answered when a stream is idle."""

from __future__ import annotations

import io
import os

import pytest

from fenchel.seq2seq.data import _lines
from fenchel.seq2seq.data._lines import decode_line, live_lines, read_lines


@pytest.fixture
def pipe():
    """A stream, and the descriptor to write to it."""
    read, write = os.pipe()
    with open(read, "rb") as stream:
        yield stream, write


def test_a_pipe_is_idle_once_its_lines_are_read(pipe):
    stream, write = pipe
    lines = live_lines(stream)
    assert next(lines) is None
    os.write(write, b"one\ntwo\nthr")
    assert [next(lines) for _ in range(3)] == [b"one", b"two", None]
    os.write(write, b"ee\n\nfour")
    assert [next(lines) for _ in range(3)] == [b"three", b"", None]
    os.close(write)
    assert list(lines) == [b"four"]


def test_a_pipe_that_does_not_block_is_waited_for(pipe):
    stream, write = pipe
    os.set_blocking(stream.fileno(), False)
    lines = live_lines(stream)
    assert next(lines) is None
    os.write(write, b"one\n")
    assert [next(lines) for _ in range(2)] == [b"one", None]
    os.close(write)
    assert list(lines) == []


@pytest.mark.parametrize("reader", [read_lines, live_lines])
def test_lines_longer_than_a_chunk_are_whole(pipe, monkeypatch, reader):
    monkeypatch.setattr(_lines, "CHUNK_BYTES", 4)
    stream, write = pipe
    os.write(write, b"1234567890\nab\n" * 3)
    os.close(write)
    assert list(reader(stream)) == [b"1234567890", b"ab"] * 3


@pytest.mark.parametrize("reader", [read_lines, live_lines])
def test_a_file_is_never_idle(tmp_path, reader):
    text = b"".join(b"%d\n" % k for k in range(50_000))
    assert len(text) > 2 * _lines.CHUNK_BYTES
    (tmp_path / "lines").write_bytes(text)
    with open(tmp_path / "lines", "rb") as stream:
        assert list(reader(stream)) == text.splitlines()


def test_bytes_in_memory_are_read():
    lines = live_lines(io.BufferedReader(io.BytesIO(b"one\ntwo")))
    assert [line for line in lines if line is not None] == [b"one", b"two"]


@pytest.mark.parametrize("reader", [read_lines, live_lines])
@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_of_a_long_line_one_byte_too_many_is_kept(pipe, monkeypatch, reader, chunk, end):
    monkeypatch.setattr(_lines, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 5)
    stream, write = pipe
    os.write(write, b"12345\n123456\n1234567890" + end)
    os.close(write)
    assert list(reader(stream)) == [b"12345", b"123456", b"123456"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"123456", "longer than 5 bytes"),
        (b"a\xff", "not UTF-8 at byte 2"),
        (b"ab\0", "a NUL at byte 3, as in a binary file"),
    ],
)
def test_what_is_no_text_is_named(monkeypatch, line, reason):
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 5)
    with pytest.raises(ValueError, match=f"^{reason}$"):
        decode_line(line, 1)


def test_a_byte_order_mark_is_dropped_from_the_first_line():
    assert decode_line(b"\xef\xbb\xbfa", 1) == "a"
    assert decode_line(b"\xef\xbb\xbfa", 2) == "\ufeffa"
