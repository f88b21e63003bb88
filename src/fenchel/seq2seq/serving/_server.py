"""Runs the application: sockets, signals, and clients that send nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import sys
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ._guard import longest

HEAD_SECONDS = 10.0
"""How long a client may take to send the head of a request."""
MAX_HEAD_BYTES = 1 << 15
BACKLOG = 2048
"""Connections that wait to be accepted."""


class Protocol(H11Protocol):
    """HTTP that closes a connection on which no head of a request arrives in time."""

    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_watch()

    def _start_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; port 0 takes a free one.

    Raises:
        OSError: if the address is not this machine's, or in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen at {host}, port {port}: {reason}.") from None
    return found


def server(app: ASGIApp, connections: int, seconds: float) -> uvicorn.Server:
    """The server of an application; `serve(sockets=[…])` runs it.

    Args:
        app: the application.
        connections: the largest number of open connections.
        seconds: the time limit of a request; a shutdown waits until all requests are over.
    """
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections + 1,
        timeout_graceful_shutdown=math.ceil(longest(seconds)) + 1,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    return uvicorn.Server(config)


def run(app: ASGIApp, listener: socket.socket, connections: int, seconds: float) -> None:
    """Serves until SIGTERM or Ctrl-C, then answers what has arrived and returns.

    Ctrl-C is raised again as KeyboardInterrupt.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )

    running = server(app, connections, seconds)

    def stop(*_: Any) -> None:
        """Before the server handles signals itself, and again when it has shut down by one."""
        running.should_exit = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        running.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
