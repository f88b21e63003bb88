"""Batches: which jobs are computed together, in which order, and what ends them."""

from __future__ import annotations

import asyncio

import pytest

from fenchel.seq2seq.serving._batcher import Batcher
from fenchel.seq2seq.serving._errors import RequestError
from fenchel.seq2seq.serving._metrics import Metrics


def run(items, check):
    check()
    return [(item, len(items)) for item in items]


def test_jobs_of_a_key_share_a_batch_and_the_first_key_goes_first():
    order = []

    def recording(items, check):
        order.append(list(items))
        return run(items, check)

    async def main():
        async with Batcher(4, 0.05, 100, Metrics()) as batcher:
            jobs = [("a", [1, 2]), ("b", [3]), ("a", [4]), ("a", [5, 6]), ("b", [7])]
            return await asyncio.gather(*(batcher.submit(k, recording, x) for k, x in jobs))

    found = asyncio.run(main())
    assert order == [[1, 2, 4], [3, 7], [5, 6]]
    assert found[2] == [(4, 3)]
    assert found[4] == [(7, 2)]


def test_a_job_larger_than_a_batch_is_computed():
    async def main():
        async with Batcher(2, 0, 100, Metrics()) as batcher:
            return await batcher.submit("a", run, list(range(5)))

    assert asyncio.run(main()) == [(item, 5) for item in range(5)]


def test_a_cancelled_job_leaves_the_queue():
    seen = []

    def recording(items, check):
        seen.extend(items)
        return run(items, check)

    async def main():
        async with Batcher(4, 0.05, 1, Metrics()) as batcher:
            first = asyncio.ensure_future(batcher.submit("a", recording, [1]))
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="1 requests are waiting already"):
                await batcher.submit("a", recording, [2])
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return await batcher.submit("a", recording, [3])

    assert asyncio.run(main()) == [(3, 1)]
    assert seen == [3]


def test_an_end_abandons_what_waits():
    def endless(items, check):
        while True:
            check()

    async def main():
        async with Batcher(1, 0, 10, Metrics()) as batcher:
            jobs = [asyncio.ensure_future(batcher.submit(k, endless, [k])) for k in range(3)]
            await asyncio.sleep(0.05)
        with pytest.raises(RequestError, match="shutting down"):
            await batcher.submit("a", run, [1])
        return await asyncio.gather(*jobs, return_exceptions=True)

    assert [error.status for error in asyncio.run(main())] == [503] * 3
