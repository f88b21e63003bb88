"""Signals, such as that of Ctrl-C, while SparseMAP is solved."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor

from fenchel import Custom, Matching, Posterior, Sequence, sparsemap
from fenchel.ops import _native

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.ConvergenceWarning")
PATIENCE = 2.0
"""Seconds from a signal to its exception, on a busy machine; the problems here take longer."""


class AlarmError(Exception):
    """What the handlers of these tests raise."""


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], object], float, float], None]]:
    """Sets a handler of a signal that comes after so many seconds, and then in an interval."""
    before = signal.getsignal(signal.SIGALRM)

    def start(handler: Callable[[], object], after: float, interval: float = 0) -> None:
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, after, interval)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt() -> None:
    raise AlarmError


def flat(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.01


def hard(batch: tuple[int, ...] = (), max_iter: int = 10_000) -> Posterior:
    """A problem of so many rounds; where there is a batch all but one of its instances are easy."""
    scores = flat(200, 20).expand(*batch, 200, 20).clone()
    if batch:
        scores[:-1] *= 1e5
    options = {"regularize_extra": True, "max_iter": max_iter}
    return sparsemap(Sequence(200, 20), scores, flat(20, 20), **options)  # type: ignore[arg-type]


def easy() -> Tensor:
    return sparsemap(Matching(3, 3), flat(3, 3)).marginals


def own() -> Posterior:
    """SparseMAP by an oracle in Python."""

    def best(scores: Tensor) -> Tensor:
        time.sleep(0.02)
        return torch.nn.functional.one_hot(scores.argmax(-1), 1000)

    return sparsemap(Custom((1000,), best, batched=True), flat(1000))


SLOW = {
    "one": hard,
    "last of batch": partial(hard, (3,)),
    "own": own,
    **{
        method: partial(sparsemap, Matching(60, 60), flat(60, 60), method=method)
        for method in ("frank_wolfe", "away", "pairwise")
    },
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("solve", SLOW.values(), ids=SLOW)
def test_exception_of_handler_comes_out(solve, threads, alarm) -> None:
    expected, num_threads = easy(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        start = time.monotonic()
        alarm(interrupt, 0.3)
        with pytest.raises(AlarmError):
            solve()
        assert time.monotonic() - start < 0.3 + PATIENCE
    finally:
        torch.set_num_threads(num_threads)
    assert easy().equal(expected)


def test_reference(monkeypatch, alarm) -> None:
    monkeypatch.setattr(_native, "LIBRARY", None)
    start = time.monotonic()
    alarm(interrupt, 0.3)
    with pytest.raises(AlarmError):
        hard()
    assert time.monotonic() - start < 0.3 + PATIENCE


def test_keyboard_interrupt() -> None:
    timer, start = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]), time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        hard()
    assert time.monotonic() - start < 0.3 + PATIENCE
    timer.join()


def test_handler_that_returns(alarm) -> None:
    expected = hard(max_iter=1500).marginals
    seen: list[Tensor] = []
    alarm(lambda: seen.append(easy()), 0.05, 0.05)  # which calls the solver in the midst of a solve
    found = hard(max_iter=1500).marginals
    assert found.equal(expected)
    assert len(seen) > 1
    assert all(one.equal(seen[0]) for one in seen)


def test_other_threads_go_on(alarm) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(hard, max_iter=1500)
        alarm(interrupt, 0.1)
        with pytest.raises(AlarmError):
            future.result()
        assert future.result().iterations == 1500
