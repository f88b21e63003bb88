"""Ctrl-C while the `fenchel` command is being loaded, or loads more: one line, and the end.

An exception must not pass through an import: extensions abort, hang, or call it an error of their
own. So it is raised in the command itself alone, which ends as its `main` says. Where fenchel is
not the program but a library of another, nothing is changed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

STOPPED = 128 + signal.SIGINT
"""The exit code, as a shell has it."""
MAIN = "fenchel.cli._main"
UNDO_BAR = "\r\x1b[2K\x1b[?25h"
"""Clears a terminal's line of a progress bar, and shows the cursor that it hides."""


def _is_command() -> bool:
    """Whether this process was started as `fenchel` or as `python -m fenchel`."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # as long as the module is looked for
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["fenchel"]
    return os.path.basename(name) == "fenchel"


def _stop(_: int, frame: FrameType | None) -> None:
    """Raises in the command, and quits in an import, or before and after the command."""
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == MAIN:
            raise KeyboardInterrupt
        frame = frame.f_back
    with contextlib.suppress(OSError):  # to the descriptor: a bar takes `sys.stderr` for itself
        os.write(2, f"{UNDO_BAR if os.isatty(2) else ''}fenchel: stopped\n".encode())
    os._exit(STOPPED)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)
