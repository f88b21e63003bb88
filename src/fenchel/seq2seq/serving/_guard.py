"""What surrounds every request: checks, headers, time limits, errors as JSON, and counts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..explanations._page import script
from ._errors import RequestError
from ._metrics import Metrics

logger = logging.getLogger("fenchel.serve")

CLIENT_LEFT = 499
"""The status, in the metrics alone, of a request whose client left."""
SENDING_SECONDS = 30.0
"""How long a client may take to read an answer, beyond the time of the request itself."""
MAX_DISCARDED = 4 << 20
DISCARDING_SECONDS = 2.0
"""How much of a refused body is read, in bytes and in time, so that its client reads the error."""


def longest(seconds: float) -> float:
    """After how long every request is over: its body, its answer, and what follows them."""
    return 2 * seconds + max(SENDING_SECONDS, DISCARDING_SECONDS)


def _policy() -> str:
    """Nothing is loaded, and only the page's own script runs."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def error_response(error: RequestError) -> JSONResponse:
    """An error as JSON."""
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    content = {"error": {"status": error.status, "message": error.message}}
    if error.closes:
        return ClosingResponse(content, error.status, {**headers, "connection": "close"})
    return JSONResponse(content, error.status, headers)


class ClosingResponse(JSONResponse):
    """An answer to a request whose body was not read.

    A connection that is closed while its client sends is reset, and the answer lost. So the rest
    of the body is discarded for a while after the answer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_discard(receive), DISCARDING_SECONDS)
        await send({"type": "http.response.body"})


async def _discard(receive: Receive) -> None:
    """Reads the rest of a body, up to a limit."""
    size = 0
    while size <= MAX_DISCARDED:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


class Guard:
    """The outermost layer of the application.

    Args:
        app: answers the requests.
        metrics: counts the answers.
        paths: those that are counted by name.
        hosts: the names by which clients may address the service; None allows all. A page of
            another site that resolves its own name to this machine is refused by them.
        seconds: after which a request is over, its body and its answer included.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        paths: Collection[str],
        hosts: Collection[str] | None,
        seconds: float,
    ) -> None:
        self._app, self._metrics, self._paths, self._hosts = app, metrics, paths, hosts
        self._seconds = seconds
        self._headers = {
            "cache-control": "no-store",
            "content-security-policy": _policy(),
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), CLIENT_LEFT

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        try:
            answer = self._answer(scope, receive, send_guarded)
            await asyncio.wait_for(answer, longest(self._seconds))
        except asyncio.TimeoutError:
            logger.warning("a client did not read its answer")
        except Exception:
            logger.exception("a request failed")
            if status == CLIENT_LEFT:  # nothing was sent yet
                refusal = error_response(RequestError(500, "The service failed; see its log."))
                await refusal(scope, receive, send_guarded)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.add_request(path, status, time.monotonic() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_host(Headers(scope=scope).get("host", ""))
            await self._app(scope, receive, send)
        except RequestError as error:
            await error_response(error)(scope, receive, send)

    def _check_host(self, host: str) -> None:
        if self._hosts is None:
            return
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in self._hosts:
            raise RequestError(
                400, "The Host header names another machine; see the option --allowed-host."
            )
