"""The lines of a stream as they arrive, so that whoever writes them can wait for the answers."""

from __future__ import annotations

import select
from collections.abc import Iterator
from io import BufferedIOBase

CHUNK = 1 << 16
"""The most bytes of one reading, as many as a pipe holds."""
GRACE = 0.01
"""Seconds without anything new after which a stream is idle."""


def arrivals(stream: BufferedIOBase, longest: int) -> Iterator[bytes | None]:
    """The lines of a stream without their ends, and None whenever it is idle.

    Args:
        stream: a file, a pipe, a terminal, or bytes in memory.
        longest: how many bytes of a line may matter; of a longer one there is one more.
    """
    line = b""
    while True:
        if not _arrives(stream, GRACE):
            yield None
            _arrives(stream, None)
        data = stream.read1(CHUNK)
        if not data:
            break
        *ended, begun = data.split(b"\n")
        for end in ended:
            yield (line + end)[: longest + 1]
            line = b""
        line = (line + begun)[: longest + 1]
    if line:
        yield line


def _arrives(stream: BufferedIOBase, seconds: float | None) -> bool:
    """Whether a reading within this time, or at any time for None, need not be waited for."""
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except OSError:  # nothing that a system call could watch
        return False
