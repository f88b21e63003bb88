"""Times of several contenders, measured in turn on the same fresh inputs."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

MIN_SECONDS = 2e-4
"""The least time of one measurement by default; shorter calls are repeated within it."""
SLOW_ROUNDS = 5
"""Measurements of a slow contender."""


@dataclass(frozen=True)
class Contender:
    """Something to time: a function of the inputs, measured in few rounds if it is slow."""

    name: str
    run: Callable[..., Any]
    slow: bool = False


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median and the quartiles around it."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        if len(samples) < 2:
            return cls(samples[0], samples[0], samples[0])
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, lower, upper)


def _measure(contender: Contender, inputs: tuple, repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        contender.run(*inputs)
    return (perf_counter() - start) / repeats


def race(
    contenders: Sequence[Contender],
    fresh: Callable[[], tuple],
    rounds: int,
    *,
    min_seconds: float = MIN_SECONDS,
    synchronize: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """The time of each contender, by name.

    Args:
        contenders: each is warmed up, then measured once per round, in an order that rotates.
        fresh: new random inputs, drawn outside the clock and shared by the contenders of a round.
        rounds: how many.
        min_seconds: the least time of one measurement.
        synchronize: called before each measurement, outside the clock. Work that a device still
            does after the last call is not counted.
    """
    inputs = fresh()
    repeats = {}
    for contender in contenders:
        warm = min(_measure(contender, inputs, 1) for _ in range(1 if contender.slow else 5))
        repeats[contender.name] = max(1, math.ceil(min_seconds / warm))

    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    stride = max(1, rounds // SLOW_ROUNDS)
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            inputs = fresh()
            start = turn % len(contenders)
            for contender in (*contenders[start:], *contenders[:start]):
                if not contender.slow or turn % stride == 0:
                    synchronize()
                    seconds = _measure(contender, inputs, repeats[contender.name])
                    samples[contender.name].append(seconds)
    finally:
        gc.enable()
    return {name: Timing.of(values) for name, values in samples.items()}
