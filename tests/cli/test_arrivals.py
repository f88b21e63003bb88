"""Lines as they arrive: whole, in order, and none is waited for while others are at hand."""

from __future__ import annotations

import io
import os

import pytest

from fenchel.cli import _arrivals
from fenchel.cli._arrivals import arrivals


@pytest.fixture
def pipe():
    """A stream, and the descriptor to write to it."""
    read, write = os.pipe()
    with open(read, "rb") as stream:
        yield stream, write


def test_a_pipe_is_idle_once_its_lines_are_read(pipe):
    stream, write = pipe
    lines = arrivals(stream, 100)
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
    lines = arrivals(stream, 100)
    assert next(lines) is None
    os.write(write, b"one\n")
    assert [next(lines) for _ in range(2)] == [b"one", None]
    os.close(write)
    assert list(lines) == []


def test_lines_longer_than_a_reading_are_whole(pipe, monkeypatch):
    monkeypatch.setattr(_arrivals, "CHUNK", 4)
    stream, write = pipe
    os.write(write, b"1234567890\nab\n" * 3)
    os.close(write)
    assert list(arrivals(stream, 100)) == [b"1234567890", b"ab"] * 3


def test_a_file_is_never_idle(tmp_path):
    text = b"".join(b"%d\n" % k for k in range(50_000))
    assert len(text) > 2 * _arrivals.CHUNK
    (tmp_path / "lines").write_bytes(text)
    with open(tmp_path / "lines", "rb") as stream:
        assert list(arrivals(stream, 100)) == text.splitlines()


def test_bytes_in_memory_are_read():
    lines = arrivals(io.BufferedReader(io.BytesIO(b"one\ntwo")), 100)
    assert [line for line in lines if line is not None] == [b"one", b"two"]


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_of_a_long_line_one_byte_too_many_is_kept(pipe, monkeypatch, chunk, end):
    monkeypatch.setattr(_arrivals, "CHUNK", chunk)
    stream, write = pipe
    os.write(write, b"12345\n123456\n1234567890" + end)
    os.close(write)
    assert list(arrivals(stream, 5)) == [b"12345", b"123456", b"123456"]
