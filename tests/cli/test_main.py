"""The command line: wrong usage, help, and the module."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fenchel import cli

COMMANDS = ("demo", "doctor", "evaluate", "explain", "predict", "train")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["paint"], "invalid choice: 'paint'"),
        (["demo", "--mappings", "a.gif"], "must end in .png, .pdf, .svg, got 'a.gif'."),
        (["demo", "--colour"], "unrecognized arguments: --colour"),
        (["predict"], "the following arguments are required: MODEL"),
        (["predict", "model", "--nbest", "0"], "must be a positive number, got '0'."),
        (["predict", "model", "--attention"], "--attention needs --json."),
        (["explain", "model"], "the following arguments are required: TEXT"),
    ],
)
def test_wrong_usage_exits_with_2(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_tells_the_exit_codes(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(words)
    assert "exit codes: 0 success, 1 failure" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_folder_without_a_model(command, tmp_path, capsys):
    words = ["draw V;PST"] if command == "explain" else []
    assert cli.main([command, str(tmp_path), *words]) == 1
    assert f"{tmp_path} holds no trained model" in capsys.readouterr().err


def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fenchel ")
