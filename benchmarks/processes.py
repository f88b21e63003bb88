"""Calls in processes of their own: the time of a first call, and many compilations at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

MAX_SECONDS = 120
"""Of a process."""


def measure(command: Sequence[str], empty_cache: bool = False) -> float | str:
    """The number that a command prints, or why there is none.

    Args:
        command: its words.
        empty_cache: whether it starts without kernels that Triton compiled before.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": folder} if empty_cache else None
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=MAX_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"fails: takes more than {MAX_SECONDS} s"
    try:
        return float(done.stdout.split()[0])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"fails: {last}"[:70]


def run_all(commands: Sequence[Sequence[str]], seconds: float) -> None:
    """Runs commands on all cores; those that are not done in time are stopped."""
    deadline = monotonic() + seconds

    def run(command: Sequence[str]) -> None:
        left = deadline - monotonic()
        if left > 0:
            try:
                subprocess.run(command, capture_output=True, timeout=left)
            except subprocess.TimeoutExpired:
                return

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
