"""Many clients at once: nothing is lost, every answer is right, and memory stays bounded."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path

import pytest
from served import Served, request, small_model

from fenchel.seq2seq import decode

CLIENTS = 200
TEXTS = ["".join(random.Random(k).choices("adginrsw", k=1 + k % 9)) + " V;PST" for k in range(50)]


def resident_bytes() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def answers(model) -> dict[str, str]:
    """The best output of every text."""
    results = decode(model, TEXTS, max_length=8)
    return {
        text: model.target.decode(result.hypotheses[0].tokens)
        for text, result in zip(TEXTS, results, strict=True)
    }


async def load(port: int, requests: int, expected: dict[str, str]) -> list[int]:
    """Clients that each send some requests, one after the other; returns all statuses."""

    async def client(number: int) -> list[int]:
        draw, found = random.Random(number), []
        for _ in range(requests):
            texts = draw.choices(TEXTS, k=draw.randint(1, 3))
            options = draw.choice([{}, {"nbest": 3}, {"certificate": True}])
            status, answer = await request(port, "/predict", {"inputs": texts, **options})
            found.append(status)
            best = [result["outputs"][0]["text"] for result in answer["results"]]
            assert [result["input"] for result in answer["results"]] == texts
            assert best == [expected[text] for text in texts]
        return found

    groups = await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return [status for group in groups for status in group]


@pytest.mark.parametrize("requests", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_nothing_is_lost_under_load(requests):
    model = small_model()
    expected = answers(model)
    with Served(model, batch_size=64, seconds=120) as served:
        statuses = asyncio.run(load(served.port, requests, expected))
        assert statuses == [200] * CLIENTS * requests
        text = served.ask("GET", "/metrics")[2]
        assert f'fenchel_requests_total{{path="/predict",status="200"}} {len(statuses)}' in text
        assert served.metric("fenchel_queue_requests") == 0
        assert served.metric("fenchel_abandoned_total") == 0


@pytest.mark.slow
def test_memory_is_bounded_under_load():
    model = small_model()
    expected = answers(model)
    with Served(model, batch_size=64, seconds=120) as served:
        asyncio.run(load(served.port, 5, expected))
        gc.collect()
        before = resident_bytes()
        for _ in range(3):
            asyncio.run(load(served.port, 10, expected))
        gc.collect()
        assert resident_bytes() - before < 32 << 20
