"""The command line: wrong usage, help, and the module."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fenchel
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
        (["predict", "model", "--nbest", "0"], "must be a positive integer, got '0'."),
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


def test_an_interrupt_is_what_a_shell_expects(monkeypatch, capsys):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fenchel.cli._doctor.run", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "fenchel doctor: stopped\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-m", "fenchel", "doctor"], 130, "fenchel: stopped\n"),
        (["fenchel", "doctor"], 130, "fenchel: stopped\n"),
        (["-c", "import fenchel", "-m", "fenchel"], -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_an_interrupt_of_imports_is_no_traceback(tmp_path, words, code, said):
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    (tmp_path / "fenchel").write_text("from fenchel.cli import main\nmain()")
    package = Path(fenchel.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{package}"}
    if words[0] == "fenchel":
        words = [str(tmp_path / "fenchel"), *words[1:]]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.endswith(said) if code == 130 else said in done.stderr
    assert ("Traceback" in done.stderr) == (code != 130)


def test_options_stand_anywhere_among_words(monkeypatch):
    seen = {}
    for command in ("train", "predict", "evaluate"):
        monkeypatch.setattr(
            f"fenchel.cli._{command}._run", lambda _, arguments: seen.update(vars(arguments)) or 0
        )
    cli.main(["train", "c.yaml", "--quiet", "a.b=1", "--allow-changed-data", "c.d=2", "e.f=3"])
    assert (seen["config"], seen["overrides"]) == ("c.yaml", ["a.b=1", "c.d=2", "e.f=3"])
    assert seen["quiet"]
    assert seen["allow_changed_data"]
    cli.main(["train", "--quiet", "c.yaml"])
    assert (seen["config"], seen["overrides"]) == ("c.yaml", [])
    cli.main(["predict", "one", "--nbest", "3", "two"])
    assert seen["models"] == [Path("one"), Path("two")]
    cli.main(["evaluate", "model", "a", "--json", "b"])
    assert seen["files"] == ["a", "b"]
    for words in (["train", "c.yaml", "--loud", "a.b=1"], ["explain", "model", "text", "more"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(words)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [("train", "Lower training.batch_size, or set"), ("predict", "Lower --batch-size.")],
)
def test_without_memory_it_says_what_takes_less(command, remedy, monkeypatch, capsys):
    def full(*_: object) -> int:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(f"fenchel.cli._{command}._run", full)
    assert cli.main([command, "folder"]) == 1
    assert f"error: CUDA out of memory. {remedy}" in capsys.readouterr().err


def test_without_the_machines_memory_it_says_what_takes_less(monkeypatch, capsys):
    monkeypatch.setattr(
        "fenchel.cli._train._run", lambda *_: torch.empty(2**60, device="cpu") and 0
    )
    assert cli.main(["train", "folder"]) == 1
    assert "Lower training.batch_size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOENT, "No such file or directory", "a.tsv"), "a.tsv: No such file or"),
        (OSError(errno.EXDEV, "Invalid link", Path("a"), None, "b"), "a -> b: Invalid link\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device\n"),
        (OSError("the pipe is shut."), "the pipe is shut.\n"),
    ],
)
def test_errors_of_the_system_name_the_file_and_no_number(error, said, monkeypatch, capsys):
    def fail() -> int:
        raise error

    monkeypatch.setattr("fenchel.cli._doctor.run", fail)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith(f"fenchel doctor: error: {said}")


@pytest.mark.parametrize(
    ("output", "said"),
    [("full", "No space left on device"), ("shut", "the reader of the output closed it")],
)
def test_output_that_cannot_be_written_exits_with_1(output, said):
    if output == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-m", "fenchel", "train", "--example", "inflection"]
    done = subprocess.run(words, stdout=target, stderr=subprocess.PIPE, env=environment, text=True)
    os.close(target)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_errors_into_a_pipe_that_is_closed_too_are_no_traceback():
    reader, target = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "fenchel", "train", "--example", "inflection"]
    done = subprocess.run(words, stdout=target, stderr=target)
    os.close(target)
    assert done.returncode == 1


def test_marks_that_the_output_lacks_are_spelt_out(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr("fenchel.cli._doctor.run", lambda: sys.stdout.write("\N{CHECK MARK}") - 1)
    assert cli.main(["doctor"]) == 0
    assert written.getvalue() == b"\\u2713"


def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fenchel ")
