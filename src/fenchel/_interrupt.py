"""Ctrl-C while the `fenchel` command is still importing what it needs: an exit code, no traceback.

This is imported before anything else, and does nothing in any other program."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

STOPPED = 128 + signal.SIGINT
"""The exit code that a shell makes of an interrupt."""


def _is_command() -> bool:
    words = sys.orig_argv
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    return module == ["fenchel"] or Path(sys.argv[0] if sys.argv else "").name == "fenchel"


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"fenchel: stopped\n")
    os._exit(STOPPED)


def over() -> None:
    """Leaves interrupts to Python again, once the command can answer them."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)
