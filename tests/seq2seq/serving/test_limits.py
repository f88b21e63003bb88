"""The service stays within its limits of size, time and memory."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from served import Served, small_model

from fenchel.seq2seq import Seq2Seq
from fenchel.seq2seq.serving import _answers, _guard, _server


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return small_model()


@pytest.fixture(scope="module")
def served(model) -> Iterator[Served]:
    with Served(model) as running:
        yield running


def test_a_body_that_is_too_large(model):
    with Served(model, body_bytes=1000) as served:
        status, answer = served.post("/predict", {"inputs": ["d V"], "prefix": "d" * 2000})
        assert (status, answer["error"]["message"]) == (
            413,
            "The body must have at most 1000 bytes.",
        )
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            chunk = b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"
            sent = 0
            try:
                while sent < 100 << 20:
                    client.sendall(chunk)
                    sent += len(chunk)
            except OSError:
                pass
            assert sent < 50 << 20  # the connection was closed long before
        assert served.post("/predict", {"inputs": ["d V"]})[0] == 200


@pytest.mark.parametrize("more", [b"", b"Expect: 100-continue\r\n"])
def test_a_body_declared_too_large_is_refused_before_it_arrives(served, monkeypatch, more):
    monkeypatch.setattr(_guard, "DISCARDING_SECONDS", 1.0)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        began = time.monotonic()
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n" + more + b"\r\n"
        )
        first = client.recv(65536)
        assert time.monotonic() - began < 1
        assert first.startswith(b"HTTP/1.1 413 ")
        rest = b"".join(iter(lambda: client.recv(65536), b""))  # until it is closed
        assert (first + rest).endswith(b'"The body must have at most 1048576 bytes."}}')
        assert time.monotonic() - began < 5


def test_a_slow_body_and_a_slow_head(model, monkeypatch):
    monkeypatch.setattr(_server, "HEAD_SECONDS", 0.5)
    with Served(model, seconds=0.5) as served:

        def answer(data: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
                client.sendall(data)
                return b"".join(iter(lambda: client.recv(65536), b""))  # until it is closed

        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        found = answer(head + b"Content-Length: 100\r\n\r\n{")
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"The body did not arrive within 0.5 seconds." in found
        assert answer(head) == b""  # closed without an answer
        assert answer(b"") == b""
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        found = answer(whole + b"GET /health HTTP/1.1\r\n")  # and no more, on the same connection
        assert found.count(b"HTTP/1.1 200 ") == found.count(b"HTTP/1.1") == 1


class Slow:
    """Makes every step of a model take a while."""

    def __init__(self, model: Seq2Seq, seconds: float) -> None:
        self.step, self.seconds, self.count = model.step, seconds, 0

    def __call__(self, *arguments):
        self.count += 1
        time.sleep(self.seconds)
        return self.step(*arguments)


@pytest.fixture
def slow(monkeypatch) -> tuple[Seq2Seq, Slow]:
    model = small_model("softmax")  # for which any prefix is possible
    step = Slow(model, 0.1)
    monkeypatch.setattr(model, "step", step)
    return model, step


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"inputs": ["d V"], "allowed": "d", "prefix": "d" * 900}),
        ("/predict", {"inputs": ["d V"], "samples": 1, "prefix": "d" * 900}),
        ("/score", {"pairs": [{"source": "d V", "target": "d" * 900}]}),
        ("/explain?text=d+V", None),
    ],
)
def test_time_over_ends_the_computation(slow, path, body):
    model, step = slow
    with Served(model, seconds=0.25, max_length=1000) as served:
        began = time.monotonic()
        status, _, text = served.ask("POST" if body else "GET", path, body)
        assert status == 504
        assert "No answer within 0.25 seconds." in text
        assert time.monotonic() - began < 5
        deadline = time.monotonic() + 10
        while not served.metric("fenchel_abandoned_total"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        count = step.count
        assert count > 1
        time.sleep(0.3)
        assert step.count == count < 20


def test_a_client_that_leaves_ends_the_computation(slow):
    model, step = slow
    with Served(model, max_length=1000) as served:
        body = json.dumps({"inputs": ["d V"], "allowed": "d", "prefix": "d" * 900}).encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            time.sleep(0.3)
        deadline = time.monotonic() + 10
        while not served.metric("fenchel_abandoned_total"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert 0 < step.count < 50
        assert 'path="/predict",status="499"} 1' in served.ask("GET", "/metrics")[2]


def test_a_full_queue_refuses(slow):
    model, _ = slow
    found: list[int] = []
    with Served(model, queue=2, batch_size=1) as served:

        def ask(number: int) -> None:
            body = {"inputs": ["d V"], "samples": 1, "seed": number}
            found.append(served.post("/predict", body)[0])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(found) == {200, 429}
    assert found.count(200) >= 2  # as many as may wait


def test_a_shutdown_answers_what_has_arrived(slow):
    model, _ = slow
    found: list[int] = []
    with Served(model, batch_size=2) as served:
        threads = [
            threading.Thread(
                target=lambda: found.append(served.post("/predict", {"inputs": ["d V"]})[0])
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        served.stop()
        for thread in threads:
            thread.join()
    assert found == [200] * 4


def test_a_shutdown_waits_for_a_body_that_does_not_arrive(model, monkeypatch, caplog):
    monkeypatch.setattr(_guard, "DISCARDING_SECONDS", 1.0)
    with Served(model, seconds=0.5) as served:
        client = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        client.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        time.sleep(0.2)
        served.stop()
        with client:
            found = b"".join(iter(lambda: client.recv(65536), b""))
    assert found.startswith(b"HTTP/1.1 408 ")
    assert [each for each in caplog.records if each.levelname == "ERROR" or each.exc_info] == []


def test_a_shutdown_waits_as_long_as_a_request_may_take(model):
    seconds = 3.0
    body, answer = seconds, seconds
    waits = _server.server(Served(model).service.app, 1, seconds).config.timeout_graceful_shutdown
    assert waits > body + answer + max(_guard.SENDING_SECONDS, _guard.DISCARDING_SECONDS)


def test_a_search_holds_a_bounded_number_of_states(served, monkeypatch):
    limits = []
    explain = _answers.explain

    def recorded(*arguments, **options):
        limits.append(options["limit"])
        return explain(*arguments, **options)

    monkeypatch.setattr(_answers, "MAX_POSITIONS", 500)
    monkeypatch.setattr(_answers, "explain", recorded)
    long = {"inputs": ["d" * 98 + " V"], "nbest": 5}
    status, answer = served.post("/predict", {**long, "beam": 6})
    message = "With 6 hypotheses an input may have at most 83 tokens, got 100; ask for fewer."
    assert (status, answer["error"]["message"]) == (422, message)
    assert served.post("/predict", long)[0] == 200
    assert served.ask("GET", f"/explain?text={'d' * 98}+V")[0] == 200
    assert limits == [5]


def test_an_answer_holds_a_bounded_number_of_weights(model):
    with Served(model, weights=10) as served:
        status, answer = served.post("/predict", {"inputs": ["d V"] * 9, "attention": True})
        assert (status, answer["error"]["message"]) == (
            422,
            "An answer holds at most 10 attention weights.",
        )
