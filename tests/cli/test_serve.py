"""`fenchel serve` as a process: its address, its end by a signal, and what it cannot do."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import request, small_model

from fenchel import cli
from fenchel.seq2seq import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save(small_model("softmax"), path)
    return path


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """The process of a service, and its port."""
    command = [sys.executable, "-m", "fenchel", "serve", str(folder), "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.fullmatch(r"Serving .* at http://127\.0\.0\.1:(\d+)/\n", line)
            assert found, line
            yield process, int(found[1])
        finally:
            process.kill()


async def clients(port: int, process: subprocess.Popen, count: int) -> list[object]:
    """Clients that ask until the service is gone, which is told to end while they do."""

    async def client() -> list[object]:
        found: list[object] = []
        while True:
            try:
                found.append((await request(port, "/predict", {"inputs": ["draw V;PST"] * 8}))[0])
            except ConnectionRefusedError:
                return found
            except Exception as error:
                found.append(error)
                return found

    async def stop() -> list[object]:
        await asyncio.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        return []

    groups = await asyncio.wait_for(asyncio.gather(stop(), *(client() for _ in range(count))), 60)
    return [each for group in groups for each in group]


def test_sigterm_during_load_answers_what_has_arrived(folder):
    with running(folder, "--device", "cpu", "--max-length", "20") as (process, port):
        address = f"http://127.0.0.1:{port}/health"
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200
        with socket.socket() as other:  # bound to this machine alone
            other.bind(("127.0.0.2", port))
        found = asyncio.run(clients(port, process, 20))
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    answered = [each for each in found if each in (200, 503)]
    assert answered.count(200) >= 20
    # A connection that had only just been opened may be closed without an answer.
    assert all(isinstance(each, OSError | IndexError) for each in found if each not in answered)


@pytest.mark.slow
def test_ctrl_c(folder):
    with running(folder, "--device", "cpu") as (process, port):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30).close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "fenchel serve: stopped\n"


def test_a_port_in_use(folder, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert cli.main(["serve", str(folder), "--port", str(port), "--device", "cpu"]) == 1
    assert f"error: cannot listen at 127.0.0.1, port {port}: Address" in capsys.readouterr().err


def test_a_missing_package(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    for name in [name for name in sys.modules if name.startswith("fenchel.seq2seq.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["serve", str(folder), "--port", "0", "--device", "cpu"]) == 1
    assert "install it with pip install 'fenchel[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "must be a number from 0 to 65535, got '70000'"),
        (["--seconds", "0"], "must be a number above 0 and at most 3600, got '0'"),
        (["--max-queue", "0"], "must be a positive integer, got '0'"),
    ],
)
def test_wrong_options(folder, capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["serve", str(folder), *words])
    assert message in capsys.readouterr().err
