"""The errors of the service, each with its HTTP status."""

from __future__ import annotations


class RequestError(Exception):
    """A request that has no answer.

    Args:
        status: of HTTP.
        message: for the client.
        closes: whether the connection is closed, because the rest of the request was not read.
    """

    def __init__(self, status: int, message: str, closes: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.closes = status, message, closes


class AbandonedError(Exception):
    """Nobody waits for the answer any more; ends a computation between two steps."""
