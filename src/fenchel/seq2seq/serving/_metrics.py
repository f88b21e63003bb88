"""Counts and times of the service, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts of values up to each of some bounds.

    >>> sizes = Histogram((1, 10))
    >>> for value in (1, 5, 99):
    ...     sizes.add(value)
    >>> print("\\n".join(sizes.lines("n")))
    n_bucket{le="1"} 1
    n_bucket{le="10"} 2
    n_bucket{le="+Inf"} 3
    n_sum 105
    n_count 3
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """The histogram as text; `labels` is such as `path="/predict"`."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            shown = bound if isinstance(bound, str) else f"{bound:g}"
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{shown}"}} {total}'
        suffix = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{suffix} {self._sum:g}"
        yield f"{name}_count{suffix} {total}"


class Metrics:
    """All counts of the service; only the event loop writes them."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(SIZES)
        self._queue = self._abandoned = 0

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Counts an answer; `path` is one of a few. A client that left has the status 499."""
        self._requests[path, status] += 1
        self._seconds.setdefault(path, Histogram(SECONDS)).add(seconds)

    def add_batch(self, items: int) -> None:
        """Counts a batch that the model computes."""
        self._batches.add(items)

    def add_abandoned(self, jobs: int) -> None:
        """Counts requests that nobody waited for any more."""
        self._abandoned += jobs

    def set_queue(self, size: int) -> None:
        """How many requests wait for the model."""
        self._queue = size

    def text(self) -> str:
        """All of it, for Prometheus."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# HELP fenchel_requests_total Answers by path and status."
        yield "# TYPE fenchel_requests_total counter"
        for (path, status), count in sorted(self._requests.items()):
            yield f'fenchel_requests_total{{path="{path}",status="{status}"}} {count}'
        yield "# HELP fenchel_request_seconds Time from a request's arrival to its answer."
        yield "# TYPE fenchel_request_seconds histogram"
        for path, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("fenchel_request_seconds", f'path="{path}"')
        yield "# HELP fenchel_batch_inputs Inputs that the model computed together."
        yield "# TYPE fenchel_batch_inputs histogram"
        yield from self._batches.lines("fenchel_batch_inputs")
        yield "# HELP fenchel_queue_requests Requests that wait for the model."
        yield "# TYPE fenchel_queue_requests gauge"
        yield f"fenchel_queue_requests {self._queue}"
        yield "# HELP fenchel_abandoned_total Requests whose client left or whose time was over."
        yield "# TYPE fenchel_abandoned_total counter"
        yield f"fenchel_abandoned_total {self._abandoned}"
