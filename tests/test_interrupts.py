"""Ctrl-C at any moment of the `fenchel` command: one line, exit code 130, and no traceback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
INTERRUPT = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
SCRIPT = "import sys\nfrom fenchel.cli import main\nsys.exit(main())\n"


def run(words: list[str], *folders: Path) -> tuple[int, str, str]:
    """The exit code, and what was written, with modules found in the folders first."""
    path = os.pathsep.join(map(str, [*folders, SOURCE]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("started", ["script", "module"])
@pytest.mark.parametrize("module", ["torch", "pydantic"])
def test_in_an_import(started, module, tmp_path):
    modules, folder = tmp_path / "modules", tmp_path / "bin"
    modules.mkdir()
    folder.mkdir()
    (modules / f"{module}.py").write_text(INTERRUPT)
    (folder / "fenchel").write_text(SCRIPT)
    words = ["-m", "fenchel"] if started == "module" else [str(folder / "fenchel")]
    stopped = run([*words, "train", "--example", "inflection"], modules)
    assert stopped == (130, "", "fenchel: stopped\n")


def test_in_an_import_while_a_bar_is_shown(tmp_path):
    (tmp_path / "late.py").write_text(INTERRUPT)
    (tmp_path / "fenchel").write_text(
        "import fenchel\nfrom fenchel.cli._progress import Progress\n"
        "with Progress():\n    import late\n"
    )
    screen, terminal = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"}
    words = [sys.executable, str(tmp_path / "fenchel")]
    with subprocess.Popen(words, stderr=terminal, env=environment) as process:
        os.close(terminal)
        seen = b""
        with contextlib.suppress(OSError):  # at the end
            while data := os.read(screen, 1 << 16):
                seen += data
        os.close(screen)
        assert process.wait(60) == 130
    assert seen.endswith(b"fenchel: stopped\r\n")
    hidden, shown = (seen.rfind(b"\x1b[?25" + end) for end in (b"l", b"h"))
    assert -1 < hidden < shown


def test_in_the_command(tmp_path):
    (tmp_path / "fenchel").write_text(
        "import fenchel, fenchel.cli._doctor as doctor, os, signal\n"
        "doctor.run = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        f"{SCRIPT}"
    )
    stopped = run([str(tmp_path / "fenchel"), "doctor"])
    assert stopped == (130, "", "fenchel doctor: stopped\n")


def test_before_and_after_the_command(tmp_path):
    (tmp_path / "fenchel").write_text(
        f"import atexit, fenchel, os, signal\natexit.register(os.kill, os.getpid(), 2)\n{SCRIPT}"
    )
    code, _, errors = run([str(tmp_path / "fenchel"), "--version"])
    assert (code, errors) == (130, "fenchel: stopped\n")


@pytest.mark.parametrize("name", ["default_int_handler", "SIG_IGN"])
def test_what_others_chose_is_kept(name, tmp_path):
    program = tmp_path / ("fenchel" if name == "SIG_IGN" else "library")
    program.write_text(
        f"import signal\nsignal.signal(signal.SIGINT, signal.{name})\nimport fenchel\n"
        f"assert signal.getsignal(signal.SIGINT) == signal.{name}\n"
    )
    assert run([str(program)]) == (0, "", "")


def test_another_module_may_be_given_its_name(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import fenchel")
    (tmp_path / "other" / "__main__.py").write_text(
        "import signal\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    assert run(["-m", "other", "fenchel"], tmp_path) == (0, "", "")
