"""Batches of concurrent requests, which one thread computes one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ._errors import AbandonedError, RequestError
from ._metrics import Metrics

logger = logging.getLogger("fenchel.serve")

Run = Callable[[list[Any], Callable[[], None]], list[Any]]
"""Computes the results of items; calls its second argument between steps, which may raise."""


@dataclass(eq=False)
class Job:
    """What one request asks for.

    Args:
        key: jobs of the same key are computed together.
        run: computes items, the same function for all jobs of a key.
        items: of this request.
        future: their results.
        is_abandoned: whether nobody waits for them.
    """

    key: Hashable
    run: Run
    items: Sequence[Any]
    future: asyncio.Future[list[Any]]
    is_abandoned: bool = False


@dataclass
class Batcher:
    """A queue of jobs, and the thread that computes them.

    The next batch has the key of the job that waited longest, and all other jobs of that key that
    fit. A job that is alone waits for others for a moment, if the thread is idle. Everything but
    the computation runs in the event loop.

    Args:
        batch_size: the largest number of items in a batch; a larger job is a batch of its own.
        wait_seconds: how long a job waits for others.
        max_queue: how many jobs may wait.
        metrics: gets the sizes of queue and batches.
    """

    batch_size: int
    wait_seconds: float
    max_queue: int
    metrics: Metrics
    _queue: deque[Job] = field(default_factory=deque)
    _running: list[Job] = field(default_factory=list)
    _is_closed: bool = False

    async def __aenter__(self) -> Batcher:
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fenchel-model")
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abandons what is left, and waits for the thread, which ends at the next step."""
        self._is_closed = True
        for job in (*self._queue, *self._running):
            self._abandon(job)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def submit(self, key: Hashable, run: Run, items: Sequence[Any]) -> list[Any]:
        """The results of items; if the caller is cancelled, they are not computed.

        Raises:
            RequestError: if the queue is full, or the service is about to end.
        """
        if self._is_closed:
            raise RequestError(503, "The service is shutting down.")
        if len(self._queue) >= self.max_queue:
            raise RequestError(429, f"{self.max_queue} requests are waiting already; try again.")
        job = Job(key, run, items, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self.metrics.set_queue(len(self._queue))
        self._arrived.set()
        try:
            return await job.future
        finally:
            job.is_abandoned = True
            if job in self._queue:
                self._queue.remove(job)
                self.metrics.set_queue(len(self._queue))

    @staticmethod
    def _abandon(job: Job) -> None:
        job.is_abandoned = True
        if not job.future.done():
            job.future.set_exception(RequestError(503, "The service is shutting down."))

    async def _serve(self) -> None:
        while True:
            is_idle = not self._arrived.is_set()
            await self._arrived.wait()
            if is_idle and self._size() < self.batch_size:
                await asyncio.sleep(self.wait_seconds)
            self._running = self._take()
            if not self._queue:
                self._arrived.clear()
            self.metrics.set_queue(len(self._queue))
            if self._running:
                await self._compute(self._running)
            self._running = []

    def _size(self) -> int:
        """The number of items that could be in the next batch."""
        return sum(len(job.items) for job in self._queue if job.key == self._queue[0].key)

    def _take(self) -> list[Job]:
        """Removes the jobs of the next batch from the queue."""
        taken: list[Job] = []
        left: deque[Job] = deque()
        size = 0
        for job in self._queue:
            fits = not taken or (
                job.key == taken[0].key and size + len(job.items) <= self.batch_size
            )
            (taken if fits else left).append(job)
            size += len(job.items) if fits else 0
        self._queue = left
        return taken

    async def _compute(self, jobs: list[Job]) -> None:
        """Computes a batch. If it fails, its jobs are computed one by one, so that only those fail
        that have to."""

        def check() -> None:
            if all(job.is_abandoned for job in jobs):
                raise AbandonedError

        def run() -> list[Any]:
            check()
            return jobs[0].run([item for job in jobs for item in job.items], check)

        self.metrics.add_batch(sum(len(job.items) for job in jobs))
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except AbandonedError:
            self.metrics.add_abandoned(len(jobs))
            return
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    await self._compute([job])
            else:
                self._fail(jobs[0], error)
            return
        rest = iter(results)
        for job in jobs:
            own = [next(rest) for _ in job.items]
            if not job.future.done():
                job.future.set_result(own)

    @staticmethod
    def _fail(job: Job, error: Exception) -> None:
        if not isinstance(error, RequestError):
            logger.error("a request failed", exc_info=error)
            error = RequestError(500, "The model failed on this request; the log has the reason.")
        if not job.future.done():
            job.future.set_exception(error)
