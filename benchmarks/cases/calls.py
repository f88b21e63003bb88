"""The host's time per call on small inputs, beside torch; what a call is spent on; and the import.

On a GPU many calls are launched one after the other without waiting for it, so that only the host's
time counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fenchel

from .. import ground_truth
from ..correctness import LossSubject, Subject, check_loss, check_mapping
from ..ground_truth import GroundTruth
from ..results import Row
from ..timing import Contender, Timing, race
from .options import Options

SHAPES = {"cpu": ((8, 8), (64, 64)), "cuda": ((64, 128),)}
ROUNDS = 201
IMPORTS = 9
MIN_SECONDS = {"cpu": 2e-4, "cuda": 4e-3}
"""The least time of one measurement; on a GPU some hundred calls, which its queue can hold."""
FORWARD, BOTH = "forward", "forward+backward"
MAX_RATIO = {
    ("cpu", FORWARD): 3.0,
    ("cpu", BOTH): 2.0,
    ("cuda", BOTH): 1.5,
    ("cpu", "loss"): 3.0,
    ("cuda", "loss"): 2.0,
}
"""To torch.softmax, and of a loss to F.cross_entropy."""
MAX_MICROSECONDS = {("cuda", FORWARD): 25.0}
MAX_TENSOR_RATIO = 1.5
"""With a tensor as parameter to the same with a number."""
MAX_IMPORT_SECONDS = 0.05
PARTS = (
    "options and their checks",
    "node of the graph",
    "further rows",
    "call on one row",
)
"""Of a forward call, from the outside to the inside."""

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Entry:
    """A mapping, its option and the option's value, and its exact solution."""

    name: str
    function: Function
    ground_truth: GroundTruth
    option: str = ""
    value: float = 0.0
    takes_tensor: bool = False

    def call(self, tensor: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """The mapping with the option as a number, or as a tensor of one per row."""
        if not self.option:
            return self.function
        return partial(self.function, **{self.option: self.value if tensor is None else tensor})

    def parameter(self, rows: Tensor) -> Tensor:
        """The value once per row (n, d), shape (n, 1)."""
        return torch.full_like(rows[:, :1], self.value, requires_grad=False)


ENTRIES = (
    Entry("softmax", fenchel.softmax, ground_truth.entmax(1.0)),
    Entry("sparsemax", fenchel.sparsemax, ground_truth.entmax(2.0)),
    Entry("entmax", fenchel.entmax, ground_truth.entmax(1.5), "alpha", 1.5, takes_tensor=True),
    Entry("pnormmax", fenchel.pnormmax, ground_truth.pnormmax(1.5), "p", 1.5),
    Entry("fusedmax", fenchel.fusedmax, ground_truth.fusedmax(0.1), "lam", 0.1),
    Entry("ksubset", fenchel.ksubset, ground_truth.ksubset(2.0), "k", 2.0, takes_tensor=True),
)
LOSSES = tuple(
    LossSubject(
        label,
        partial(fenchel.fenchel_young_loss, mapping),
        ground_truth.entmax(alpha),
        ground_truth.tsallis(alpha),
    )
    for label, mapping, alpha in (
        ("entmax", fenchel.Entmax(1.5), 1.5),
        ("sparsemax", fenchel.Sparsemax(), 2.0),
    )
)


@dataclass(frozen=True)
class Place:
    """A device, and the shape of the scores there."""

    device: str
    shape: tuple[int, int]

    def scores(self, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        """New normal scores, and a vector to multiply with the Jacobian."""
        x, v = (torch.randn(self.shape, device=self.device) for _ in range(2))
        return x.requires_grad_(needs_gradient), v

    def classified(self) -> tuple[Tensor, Tensor]:
        """New normal scores, and a class for each row."""
        x, _ = self.scores(True)
        return x, torch.randint(self.shape[1], self.shape[:1], device=self.device)

    def race(
        self, calls: Mapping[str, Callable[..., Any]], fresh: Callable[[], tuple], rounds: int
    ) -> dict[str, Timing]:
        """The host's time of each call, by name."""
        on_gpu = self.device == "cuda"
        return race(
            [Contender(name, call) for name, call in calls.items()],
            fresh,
            rounds,
            min_seconds=MIN_SECONDS[self.device],
            synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
        )

    def row(
        self, call: str, label: str, timing: Timing, to: str = "", other: Timing | None = None
    ) -> Row:
        """What every row states; `ratio` is to another call, if there is one."""
        on_gpu = self.device == "cuda"
        return {
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "call": call,
            "mapping": label,
            "shape": "x".join(map(str, self.shape)),
            "µs": timing.median * 1e6,
            "quartiles µs": f"{timing.lower * 1e6:.1f}–{timing.upper * 1e6:.1f}",
            "to": to,
            "ratio": None if other is None else timing.median / other.median,
            "target": None,
            "target µs": None,
            "met": None,
        }


def _with_targets(row: Row, ratio: float | None, microseconds: float | None = None) -> Row:
    """The row with its targets, and whether it meets them."""
    limits = [(row["ratio"], ratio), (row["µs"], microseconds)]
    met = all(value <= limit for value, limit in limits if limit is not None)
    return {**row, "target": ratio, "target µs": microseconds, "met": met}


def _forward(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, v: function(x)


def _both(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, v: torch.autograd.grad(function(x), x, v)[0]


def _loss(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, target: torch.autograd.grad(function(x, target), x)[0]


def _check(place: Place) -> None:
    """Every answer and gradient that is timed at a place."""
    for entry in ENTRIES:
        check_mapping(Subject(entry.name, entry.call(), entry.ground_truth), *place.scores(True))
        if entry.takes_tensor:
            check_mapping(
                Subject(
                    f"{entry.name} with a tensor",
                    lambda x, entry=entry: entry.call(entry.parameter(x.detach()))(x),
                    entry.ground_truth,
                ),
                *place.scores(True),
            )
    for loss in LOSSES:
        check_loss(loss, *place.classified())


def _mappings(place: Place, pass_: str, rounds: int) -> Iterator[Row]:
    """One row per mapping, and one more where its parameter may be a tensor."""
    timed = _forward if pass_ == FORWARD else _both
    example, _ = place.scores(False)
    calls = {"torch": timed(partial(torch.softmax, dim=-1))}
    for entry in ENTRIES:
        calls[entry.name] = timed(entry.call())
        if entry.takes_tensor:
            calls[f"{entry.name}, tensor"] = timed(entry.call(entry.parameter(example)))
    times = place.race(calls, partial(place.scores, pass_ != FORWARD), rounds)
    yield place.row(pass_, "torch.softmax", times["torch"])
    key = place.device, pass_
    for entry in ENTRIES:
        label = f"{entry.name}, {entry.option} = {entry.value}" if entry.option else entry.name
        row = place.row(pass_, label, times[entry.name], "torch.softmax", times["torch"])
        yield _with_targets(row, MAX_RATIO.get(key), MAX_MICROSECONDS.get(key))
        if entry.takes_tensor:
            label = f"{entry.name}, {entry.option} a tensor"
            timing = times[f"{entry.name}, tensor"]
            row = place.row(pass_, label, timing, "with a number", times[entry.name])
            yield _with_targets(row, MAX_TENSOR_RATIO)


def _losses(place: Place, rounds: int) -> Iterator[Row]:
    """One row per loss, forward and backward, with integer targets."""
    calls = {loss.label: _loss(loss.function) for loss in LOSSES}
    calls["torch"] = _loss(functional.cross_entropy)
    times = place.race(calls, place.classified, rounds)
    yield place.row("loss", "F.cross_entropy", times["torch"])
    for loss in LOSSES:
        row = place.row("loss", loss.label, times[loss.label], "F.cross_entropy", times["torch"])
        yield _with_targets(row, MAX_RATIO[place.device, "loss"])


def _profile(place: Place, rounds: int) -> Iterator[Row]:
    """What a forward call of entmax is spent on where a gradient is wanted.

    Each part is the difference of two calls: with and without the making of the mapping, the
    gradient, and the rows but one.
    """
    mapping = fenchel.Entmax(1.5)

    def fresh() -> tuple[Tensor, Tensor, Tensor]:
        x, _ = place.scores(False)
        return x.clone().requires_grad_(), x, x[:1]

    calls: dict[str, Callable[..., Tensor]] = {
        "function": lambda leaf, x, row: fenchel.entmax(leaf, alpha=1.5),
        "mapping": lambda leaf, x, row: mapping(leaf),
        "without gradient": lambda leaf, x, row: mapping(x),
        "one row": lambda leaf, x, row: mapping(row),
    }
    times = place.race(calls, fresh, rounds)
    seconds = [timing.median for timing in times.values()] + [0.0]
    whole = place.row("profile", "entmax forward", times["function"])
    yield whole
    for part, (outer, inner) in zip(PARTS, pairwise(seconds), strict=True):
        share = {"µs": (outer - inner) * 1e6, "ratio": (outer - inner) / seconds[0]}
        yield {**whole, "mapping": part, "quartiles µs": None, "to": "entmax forward", **share}


def _import(count: int) -> Row:
    """The time of `import fenchel` after `import torch`, each in a new process."""
    code = (
        "import torch, time; start = time.perf_counter(); import fenchel; "
        "print(time.perf_counter() - start)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    samples = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(1 + count):  # the first compiles
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            samples.append(float(done.stdout))
    row = Place("cpu", SHAPES["cpu"][0]).row("import", "fenchel", Timing.of(samples[1:]))
    return _with_targets({**row, "shape": None}, None, MAX_IMPORT_SECONDS * 1e6)


def rows(options: Options) -> Iterator[Row]:
    """Mappings, losses and the profile with one thread of a CPU, and the import."""
    torch.set_num_threads(1)
    yield from on_device("cpu", options)
    yield _import(1 if options.quick else IMPORTS)


def on_device(device: str, options: Options) -> Iterator[Row]:
    """Mappings, losses and the profile at every shape."""
    places = [Place(device, shape) for shape in SHAPES[device]]
    for place in places:
        _check(place)
    rounds = options.rounds if options.quick else ROUNDS
    for place in places:
        for pass_ in (FORWARD, BOTH):
            yield from _mappings(place, pass_, rounds)
        yield from _losses(place, rounds)
        yield from _profile(place, rounds)
