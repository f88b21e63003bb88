"""A service that runs in a thread of the test, and clients that speak plain HTTP to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from dataclasses import replace
from typing import Any

import torch

from fenchel.seq2seq import Characters, Inflection, ModelConfig, Seq2Seq
from fenchel.seq2seq.config._schema import SearchConfig
from fenchel.seq2seq.serving._app import Service
from fenchel.seq2seq.serving._limits import Limits
from fenchel.seq2seq.serving._server import bind, server

LIMITS = Limits(max_length=8, seconds=20.0)


def small_model(output: str = "entmax") -> Seq2Seq:
    """An untrained model, with weights large enough that its outputs differ between inputs."""
    torch.manual_seed(0)
    letters = "adginrsw"
    source = Inflection(["english"], ["PST", "V"], list(letters))
    config = ModelConfig.model_validate(
        {"embedding": 8, "hidden": 8, "layers": 1, "output": output}
    )
    model = Seq2Seq(config, source, Characters(letters))
    for name, parameter in model.named_parameters():
        if "encoder" not in name:
            torch.nn.init.normal_(parameter, std=0.8)
    return model.eval()


class Served:
    """`with Served(model) as served` runs a service at `served.port` until the block ends."""

    def __init__(
        self, model: Seq2Seq, *, batch_size: int = 32, wait_seconds: float = 0.005, **limits: Any
    ) -> None:
        self.limits = replace(LIMITS, **limits)
        self.service = Service(
            [model],
            SearchConfig(),
            self.limits,
            batch_size=batch_size,
            wait_seconds=wait_seconds,
            hosts=("127.0.0.1", "localhost"),
        )
        self._server = server(self.service.app, self.limits.connections, self.limits.seconds)

    def __enter__(self) -> Served:
        listener = bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener]))
        )
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """Begins a shutdown."""
        self._server.should_exit = True

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """The status, the headers and the text of an answer; a body that is not bytes is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"content-type": "application/json"} if body is not None else {}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, given | (headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read().decode()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of an answer."""
        status, _, text = self.ask("POST", path, body, **options)
        return status, json.loads(text)

    def metric(self, name: str) -> float:
        """The value of a metric without a histogram."""
        _, _, text = self.ask("GET", "/metrics")
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[-1])


async def request(port: int, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own, for many at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + data)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    first, _, rest = answer.partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])
