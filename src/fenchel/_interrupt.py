"""Ctrl-C while the `fenchel` command is still importing what it needs: an exit code, no traceback.

This is imported before anything else, and does nothing in any other program.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

STOPPED = 128 + signal.SIGINT
"""The exit code that a shell makes of an interrupt."""


def _is_command() -> bool:
    program, words = (sys.argv or [""])[0], sys.orig_argv
    if program == "-m":  # which it is until Python has found what to run
        return words[words.index("-m") + 1 :][:1] == ["fenchel"]
    return Path(program).name == "fenchel"


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"fenchel: stopped\n")
    os._exit(STOPPED)


def over() -> None:
    """Leaves interrupts to Python again, once the command can answer them."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    with suppress(ValueError):  # not the main thread, and so not the command
        signal.signal(signal.SIGINT, _stop)
