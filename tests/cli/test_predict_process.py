"""`fenchel predict` beside other programs: pipes, terminals, signals, and lines at hand."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_models import save_verbs

from fenchel import cli
from fenchel.seq2seq.decoding import _decode

LINES = "draw\tV;PST\nsing\tV;PST\nd\tV\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    return save_verbs(tmp_path_factory.mktemp("models"))


@contextmanager
def started(model: Path, stdin: int) -> Iterator[subprocess.Popen[bytes]]:
    """`fenchel predict`, with its output and errors as pipes."""
    words = [sys.executable, "-m", "fenchel", "predict", str(model), "--max-length", "6"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0) as process:
        yield process
        process.kill()


@pytest.fixture
def coprocess(models):
    """`fenchel predict` with its input as a pipe, too."""
    with started(models[0], subprocess.PIPE) as process:
        yield process


def answer(process: subprocess.Popen[bytes], seconds: float = 60) -> bytes:
    """The next line that a process writes."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([process.stdout], [], [], seconds)[0]:
            pytest.fail("no answer in time")
        read = os.read(process.stdout.fileno(), 1)  # type: ignore[union-attr]
        assert read, process.stderr.read()  # type: ignore[union-attr]
        line += read
    return line


def test_a_program_can_wait_for_each_answer(coprocess):
    asked = [line.encode() for line in LINES.splitlines(keepends=True)]
    answers = []
    for line in asked * 2:
        coprocess.stdin.write(line)
        answers.append(answer(coprocess))
    assert answers[:3] == answers[3:]
    coprocess.stdin.write(asked[0] + asked[1][:3])
    assert answer(coprocess) == answers[0]
    coprocess.stdin.write(asked[1][3:] + asked[2].rstrip())
    assert answer(coprocess) == answers[1]
    assert coprocess.poll() is None
    coprocess.stdin.close()
    assert answer(coprocess) == answers[2]
    assert coprocess.wait(60) == 0


def test_a_terminal_is_answered_line_by_line(models):
    keyboard, terminal = os.openpty()
    with started(models[0], terminal) as process:
        os.close(terminal)
        for _ in range(2):
            os.write(keyboard, b"draw\tV;PST\n")
            answer(process)
        os.write(keyboard, b"\x04")
        assert process.wait(60) == 0
        said = b"Type inputs, one per line; Ctrl-D on an empty line ends.\n"
        assert process.stderr.read() == said
    os.close(keyboard)


def test_a_reader_that_has_gone_ends_it(coprocess):
    coprocess.stdin.write(b"draw\tV;PST\n")
    answer(coprocess)
    coprocess.stdout.close()
    coprocess.stdin.write(b"draw\tV;PST\n")
    assert coprocess.wait(60) == 1
    said = b"the reader of the output closed it before everything was written."
    assert coprocess.stderr.read() == b"fenchel predict: error: " + said + b"\n"


def test_it_can_be_stopped_while_it_waits(coprocess):
    coprocess.stdin.write(b"draw\tV;PST\n")
    answer(coprocess)
    coprocess.send_signal(signal.SIGINT)
    assert coprocess.wait(60) == 130
    assert coprocess.stderr.read() == b"fenchel predict: stopped\n"


def test_lines_at_hand_share_a_batch(models, monkeypatch, capsys):
    sizes, decode = [], _decode.decode

    def counted(models, texts, **options):
        sizes.append(len(texts))
        return decode(models, texts, **options)

    monkeypatch.setattr(_decode, "decode", counted)
    read, write = os.pipe()
    os.write(write, b"draw\tV;PST\n" * 11)
    os.close(write)
    with open(read) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        words = ["--max-length", "3", "--batch-size", "4"]
        assert cli.main(["predict", str(models[0]), *words]) == 0
    assert sizes == [4, 4, 3]
    assert len(capsys.readouterr().out.splitlines()) == 11
