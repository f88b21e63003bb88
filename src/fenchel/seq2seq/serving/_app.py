"""The application: which path answers what."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..config._schema import SearchConfig
from ..models._model import Seq2Seq
from ._answers import Answers
from ._batcher import Batcher
from ._errors import RequestError
from ._form import form_page
from ._guard import CLIENT_LEFT, Guard, error_response
from ._limits import Limits
from ._metrics import Metrics
from ._requests import Explain, Predict, Score, checked, parse, refusal

PATHS = ("/", "/explain", "/health", "/metrics", "/predict", "/score")
JSON, FORM = "application/json", "application/x-www-form-urlencoded"

Value = TypeVar("Value")


class Service:
    """A model behind HTTP.

    Args:
        models: an ensemble.
        defaults: of the search.
        limits: of requests.
        batch_size: the largest number of inputs computed together.
        wait_seconds: how long a request waits for others to share a batch with.
        hosts: the names by which clients may address the service; None allows all.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        defaults: SearchConfig,
        limits: Limits,
        *,
        batch_size: int,
        wait_seconds: float = 0.005,
        hosts: Collection[str] | None = None,
    ) -> None:
        self._limits, self._metrics, self._began = limits, Metrics(), time.monotonic()
        self._batcher = Batcher(batch_size, wait_seconds, limits.queue, self._metrics)
        self._answers = Answers(models, defaults, limits, self._batcher)
        self.app: ASGIApp = Starlette(
            routes=[
                Route("/", self._form, methods=["GET"]),
                Route("/explain", self._explain, methods=["GET", "POST"]),
                Route("/predict", self._predict, methods=["POST"]),
                Route("/score", self._score, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._text_metrics, methods=["GET"]),
            ],
            middleware=[
                Middleware(
                    Guard,
                    metrics=self._metrics,
                    paths=PATHS,
                    hosts=hosts,
                    seconds=limits.seconds,
                )
            ],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._batcher:
            yield

    async def _form(self, _: HttpRequest) -> Response:
        return HTMLResponse(form_page({}, self._answers.has_features))

    async def _health(self, _: HttpRequest) -> Response:
        seconds = time.monotonic() - self._began
        return JSONResponse({"status": "ok", "uptime_seconds": round(seconds, 3)})

    async def _text_metrics(self, _: HttpRequest) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _predict(self, http: HttpRequest) -> Response:
        request = parse(Predict, await self._body(http, JSON), self._limits)
        return JSONResponse(await self._in_time(http, self._answers.predict(request)))

    async def _score(self, http: HttpRequest) -> Response:
        request = parse(Score, await self._body(http, JSON), self._limits)
        return JSONResponse(await self._in_time(http, self._answers.score(request)))

    async def _explain(self, http: HttpRequest) -> Response:
        """The form, and the page of an input; what is wrong is said beside the form."""
        fields = dict(http.query_params)
        if http.method == "POST":
            fields = _form_fields(await self._body(http, FORM))
        if not fields:
            return await self._form(http)
        try:
            try:
                request = checked(Explain.model_validate(fields, strict=False), self._limits)
            except ValidationError as error:
                raise refusal(error) from None
            return HTMLResponse(await self._in_time(http, self._answers.explain(request)))
        except RequestError as error:
            short = {name: text[: self._limits.characters] for name, text in fields.items()}
            headers = dict(error_response(error).headers)
            return HTMLResponse(
                form_page(short, self._answers.has_features, error.message),
                error.status,
                {k: v for k, v in headers.items() if k == "retry-after"},
            )

    async def _body(self, http: HttpRequest, kind: str) -> bytes:
        """The body of a request, of this kind, within the limits on its size and time.

        Raises:
            RequestError: 408, 413 or 415.
        """
        given = http.headers.get("content-type", "").split(";")[0].strip().lower()
        if given != kind:
            raise RequestError(415, f"The Content-Type must be {kind}.", closes=True)
        self._check_size(int(http.headers.get("content-length", 0)))
        try:
            return await asyncio.wait_for(self._read(http), self._limits.seconds)
        except asyncio.TimeoutError:
            seconds = self._limits.seconds
            late = f"The body did not arrive within {seconds:g} seconds."
            raise RequestError(408, late, closes=True) from None
        except ClientDisconnect:
            raise RequestError(CLIENT_LEFT, "The client left.") from None

    async def _read(self, http: HttpRequest) -> bytes:
        body = bytearray()
        async for part in http.stream():
            self._check_size(len(body) + len(part))
            body += part
        return bytes(body)

    def _check_size(self, size: int) -> None:
        most = self._limits.body_bytes
        if size > most:
            raise RequestError(413, f"The body must have at most {most} bytes.", closes=True)

    async def _in_time(self, http: HttpRequest, answer: Coroutine[Any, Any, Value]) -> Value:
        """The answer, unless the time is over or the client leaves before it is there.

        Raises:
            RequestError: 504, or 499 if there is nobody to tell.
        """
        work = asyncio.ensure_future(answer)
        left = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.wait(
                (work, left), timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if left.done():
                raise RequestError(CLIENT_LEFT, "The client left.")
            raise RequestError(504, f"No answer within {self._limits.seconds:g} seconds.")
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.gather(work, left, return_exceptions=True)


async def _disconnected(http: HttpRequest) -> None:
    """Returns when the client has left."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _form_fields(body: bytes) -> dict[str, str]:
    """The fields of a form; an error for anything else.

    Raises:
        RequestError: 400.
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=16, errors="strict"
        )
    except ValueError:
        raise RequestError(400, "The body must be the fields of a form, in UTF-8.") from None
    return dict(pairs)


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    """Errors of the routes: no such path, no such method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    known = ", ".join(PATHS)
    reasons = {404: f"There is no such path; there are {known}.", 405: "Not by this method."}
    response = error_response(RequestError(status, reasons.get(status, "The request is wrong.")))
    response.headers.update(getattr(error, "headers", None) or {})
    return response
