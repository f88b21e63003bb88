"""Lines of files and of live streams: one reader, one length limit, one decoder."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from io import BufferedIOBase

MAX_LINE_BYTES = 1 << 20
"""A longer line is malformed, and only its beginning is held in memory."""
CHUNK_BYTES = 1 << 16
"""How many bytes are read at once: as many as a pipe holds."""
IDLE_SECONDS = 0.01
"""A stream without new data for this long is idle."""


def read_lines(stream: BufferedIOBase) -> Iterator[bytes]:
    """The lines of a file, without their line ends.

    Of a line that is too long come `MAX_LINE_BYTES` + 1 bytes, which `decode_line` refuses.
    """
    chunks = iter(lambda: stream.read1(CHUNK_BYTES), b"")
    return (line for line in _split(chunks) if line is not None)


def live_lines(stream: BufferedIOBase) -> Iterator[bytes | None]:
    """The lines of a stream as `read_lines` has them, and None whenever the stream is idle.

    The writer of the stream may thus wait for answers to the lines that it has written.
    """
    return _split(_live_chunks(stream))


def decode_line(line: bytes, number: int) -> str:
    """The text of a line.

    Args:
        line: its bytes, without the line end.
        number: of the line, from 1; a byte order mark is dropped from the first one.
    Raises:
        ValueError: with the reason, if the line is too long or not UTF-8 text.

    >>> decode_line("déjà vu\\r".encode(), 1)
    'déjà vu'
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in line:
        raise ValueError(f"a NUL at byte {line.index(0) + 1}, as in a binary file")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None


def _split(chunks: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """The lines that chunks of bytes form together; a None among the chunks stays one."""
    start = b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield (start + end)[: MAX_LINE_BYTES + 1]
            start = b""
        start = (start + rest)[: MAX_LINE_BYTES + 1]
    if start:
        yield start


def _live_chunks(stream: BufferedIOBase) -> Iterator[bytes | None]:
    """The bytes of a stream as they arrive, and None whenever it is idle."""
    while True:
        if not _is_ready(stream, IDLE_SECONDS):
            yield None
            _is_ready(stream, None)
        chunk = stream.read1(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _is_ready(stream: BufferedIOBase, seconds: float | None) -> bool:
    """Waits up to this time, or for ever with None, until a read would return at once."""
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except OSError:  # the stream has no file descriptor
        return False
