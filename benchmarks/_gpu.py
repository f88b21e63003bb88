"""Times and memory on an NVIDIA GPU, of contenders that may fail."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, perf_counter
from typing import Any

import torch

from . import baselines, machine
from .correctness import WrongAnswerError
from .results import Row
from .timing import Timing

FLUSHED_BYTES = 256 * 2**20
"""Zeroed before a measurement, several times the L2 cache."""
WAIT_CYCLES = 2_000_000
"""The GPU waits so long before a measurement. The host runs ahead, and its time does not count."""
WARM_UP = 2
SLOW_ROUNDS = 3
"""Measurements of a slow contender."""
HOST_ROUNDS, HOST_CALLS = 7, 50
"""By the clock of the host: rounds, and calls in a row in each of them."""
MIB = 2**20
ROWS = [0, 1, 2, 3, -4, -3, -2, -1]
"""The rows that are checked."""
TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-4}
BASELINES_TOLERANCE = 0.05
"""Rough answers of other packages are timed, and their errors stated."""


def tolerance(library: str, dtype: torch.dtype) -> float:
    """On the relative error of a library's answer."""
    return TOLERANCE[dtype] if library == "fenchel" else BASELINES_TOLERANCE


class NoGpuError(Exception):
    """There is nothing to measure on."""


def describe() -> dict[str, Any]:
    """The GPU, and the versions that matter on it, as the head of a results file states them."""
    if not torch.cuda.is_available():
        raise NoGpuError(
            "this case needs an NVIDIA GPU, and torch.cuda.is_available() is False. Install a "
            "build of PyTorch with CUDA on a machine with one. Nothing was timed."
        )
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu memory GiB": round(properties.total_memory / 2**30),
        "cuda": torch.version.cuda,
        "triton": machine.version("triton"),
        **{package: machine.version(package) for package in baselines.PACKAGES},
    }


@dataclass(frozen=True)
class Contender:
    """A function of the inputs to time.

    `check` takes the inputs too and returns an error of the answer, or raises WrongAnswerError.
    """

    library: str
    mapping: str
    run: Callable[..., Any]
    check: Callable[..., float | None] = lambda *inputs: None
    slow: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a contender: its time, or a note that says why there is none."""

    timing: Timing | None = None
    error: float | None = None
    peak: float | None = None
    note: str | None = None

    @property
    def seconds(self) -> float:
        """The median, or infinity."""
        return self.timing.median if self.timing else inf


def in_time(deadline: float, contender: Contender) -> Contender:
    """The contender, or after the deadline, on `monotonic`, one that only says that it is late."""
    if monotonic() <= deadline:
        return contender

    def late(*inputs: Any) -> None:
        raise baselines.SkippedError("skipped: out of time")

    return replace(contender, check=late)


def reason(error: Exception) -> str:
    """Why a contender has no time, in a few words."""
    if isinstance(error, baselines.SkippedError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "fails: out of memory"
    if isinstance(error, WrongAnswerError):
        return f"fails: {error}"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"fails: {type(error).__name__}: {first}"[:70]


def _measure(
    run: Callable[..., Any], inputs: tuple, flush: torch.Tensor, wait_cycles: int
) -> tuple:
    """The events before and after a call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    torch.cuda._sleep(wait_cycles)
    start.record()
    run(*inputs)
    end.record()
    return start, end


def _peak(run: Callable[..., Any], inputs: tuple) -> float:
    """MiB that a call allocates at most, with its results, beyond what was there before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(*inputs)
    return (torch.cuda.max_memory_allocated() - before) / MIB


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def race(
    contenders: Sequence[Contender],
    fresh: Callable[[], tuple],
    rounds: int,
    prepare: Callable[..., tuple] = lambda *inputs: inputs,
    wait_cycles: int = WAIT_CYCLES,
) -> list[Result]:
    """What came of each contender.

    Args:
        contenders: each is checked and warmed up, then measured once per round, in an order that
            rotates.
        fresh: new random inputs, shared by the contenders of a round.
        rounds: how many.
        prepare: from the inputs of a round to those of one call, outside the clock.
        wait_cycles: for how long the GPU waits before a call, so that the host runs ahead.
    """
    results: list[Result] = []
    inputs = fresh()
    for contender in contenders:
        try:
            error = contender.check(*prepare(*inputs))
            for _ in range(WARM_UP):
                contender.run(*prepare(*inputs))
            peak = _peak(contender.run, prepare(*inputs))
            torch.cuda.synchronize()
            results.append(Result(error=error, peak=peak))
        except Exception as failure:  # of any kind: one failure must not end the race
            results.append(Result(note=reason(failure)))
        _free()

    working = [place for place, result in enumerate(results) if result.note is None]
    events: dict[int, list[tuple]] = {place: [] for place in working}
    flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    for turn in range(rounds):
        del inputs
        inputs = fresh()
        start = turn % max(1, len(working))
        for place in (*working[start:], *working[:start]):
            if not contenders[place].slow or turn < SLOW_ROUNDS:
                run = contenders[place].run
                events[place].append(_measure(run, prepare(*inputs), flush, wait_cycles))
    torch.cuda.synchronize()
    for place, pairs in events.items():
        times = [start.elapsed_time(end) / 1e3 for start, end in pairs]
        done = results[place]
        results[place] = Result(Timing.of(times), done.error, done.peak)
    del inputs, flush
    _free()
    return results


def host_race(
    contenders: Sequence[Contender], inputs: tuple, rounds: int = HOST_ROUNDS
) -> list[Result]:
    """What came of each contender by the clock of the host: the time of a call in a row of calls,
    the work of the host included. The contenders take turns."""
    results = []
    for contender in contenders:
        try:
            for _ in range(WARM_UP):
                contender.run(*inputs)
            torch.cuda.synchronize()
            results.append(Result())
        except Exception as failure:
            results.append(Result(note=reason(failure)))
    working = [place for place, result in enumerate(results) if result.note is None]
    seconds: dict[int, list[float]] = {place: [] for place in working}
    for _ in range(rounds):
        for place in working:
            start = perf_counter()
            for _ in range(HOST_CALLS):
                contenders[place].run(*inputs)
            torch.cuda.synchronize()
            seconds[place].append((perf_counter() - start) / HOST_CALLS)
    for place, found in seconds.items():
        results[place] = Result(Timing.of(found))
    return results


def columns(contender: Contender, result: Result, torch_seconds: float) -> Row:
    """What every case on a GPU states of a contender; the case adds its own columns.

    Args:
        contender, result: as in the race.
        torch_seconds: the time of torch, of which the ratio is a multiple; infinite if it failed.
    """
    timing = result.timing
    return {
        "library": contender.library,
        "mapping": contender.mapping,
        "µs": timing and timing.median * 1e6,
        "quartiles µs": timing and f"{timing.lower * 1e6:.0f}–{timing.upper * 1e6:.0f}",
        "ratio": timing.median / torch_seconds if timing and torch_seconds < inf else None,
    }
