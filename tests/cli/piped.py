"""A command that reads what a test gives it."""

from __future__ import annotations

import io
import sys

from fenchel.cli import main


def run(monkeypatch, capsys, data: str | bytes, *words: object) -> tuple[int, list[str], str]:
    """The exit code, the lines written, and the errors, of a command with this standard input."""
    raw = data.encode() if isinstance(data, str) else data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    code = main([*map(str, words), "--device", "cpu"])
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), printed.err
