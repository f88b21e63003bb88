"""The mappings against torch.softmax: forward, and forward with backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .. import memory, subjects
from ..correctness import Function, Subject, check_mapping
from ..results import Row
from ..timing import Contender, race
from .comparison import comparison
from .options import Options

SCALES = (1, 5)
MAX_MEMORY = 1.01
"""What may be allocated forward and kept for backward, as multiples of the output."""
SHAPES = ((512, 512), (2048, 1024), (64, 32000), (16, 128000))


@dataclass(frozen=True)
class Entry:
    """A subject, where it is measured, and the ratio to torch.softmax that it must not exceed."""

    subject: Subject
    target: float | None
    shapes: tuple[tuple[int, int], ...] = SHAPES
    passes: tuple[str, ...] = ("forward", "forward+backward")


BOTH = ("forward+backward",)
LONG = ((512, 2048),)
SMALL = ((64, 64),)
ENTRIES = (
    Entry(subjects.SPARSEMAX, 1.0),
    Entry(subjects.ENTMAX15, 1.0),
    *[Entry(subjects.entmax_subject(alpha), 1.3) for alpha in subjects.OTHER_ALPHAS],
    Entry(subjects.SPARSEMAX, 5.0, SMALL, ("forward",)),
    Entry(subjects.ENTMAX15, 5.0, SMALL, ("forward",)),
    Entry(subjects.entmax_subject(1.33), 5.0, SMALL, ("forward",)),
    Entry(subjects.fusedmax_subject(0.1), 4.0, LONG, BOTH),
    Entry(subjects.fusedmax_subject(1.0), 4.0, LONG, BOTH),
    Entry(subjects.oscarmax_subject(0.01), 10.0, LONG, BOTH),
    Entry(subjects.oscarmax_subject(0.001), 10.0, LONG, BOTH),
    Entry(subjects.PNORMMAX, 2.0, passes=BOTH),
    Entry(subjects.NORMMAX, None, passes=BOTH),
    Entry(subjects.KSUBSET, None, passes=BOTH),
)


def _forward(function: Function) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, v: Tensor) -> Tensor:
        return function(x)

    return run


def _forward_backward(function: Function) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, v: Tensor) -> Tensor:
        return torch.autograd.grad(function(x), x, v)[0]

    return run


PASSES = {"forward": _forward, "forward+backward": _forward_backward}


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _contenders(subject: Subject, k: int, pass_: str, quick: bool) -> list[Contender]:
    timed = PASSES[pass_]
    baselines = {} if quick else subject.baselines(k)
    return [
        Contender("torch", timed(_softmax)),
        Contender("fenchel", timed(subject.function)),
        *[Contender(name, timed(function), slow=True) for name, function in baselines.items()],
    ]


def _inputs(
    generator: torch.Generator, shape: tuple[int, int], scale: float, backward: bool
) -> tuple[Tensor, Tensor]:
    """Scores and a cotangent."""
    x = torch.randn(shape, generator=generator).mul_(scale).requires_grad_(backward)
    return x, torch.randn(shape, generator=generator)


def _cells(quick: bool) -> list[tuple[Entry, tuple[int, int], int, str]]:
    return [
        (entry, shape, scale, pass_)
        for entry in ENTRIES
        for shape in (entry.shapes[:1] if quick else entry.shapes)
        for scale in SCALES
        for pass_ in entry.passes
    ]


def rows(options: Options) -> Iterator[Row]:
    """One row per mapping, shape, scale of the scores, pass and number of threads."""
    generator = torch.Generator().manual_seed(0)
    cells = _cells(options.quick)
    torch.set_num_threads(max(options.threads))
    for entry, shape, scale, _ in cells:
        check_mapping(entry.subject, *_inputs(generator, shape, scale, True))

    for entry, shape, scale, pass_ in cells:
        function = entry.subject.function
        fresh = partial(_inputs, generator, shape, scale, pass_ != "forward")
        x, _ = fresh()
        widest = int((function(x.detach()) > 0).sum(-1).max())
        contenders = _contenders(entry.subject, 8 + widest * 5 // 4, pass_, options.quick)
        saved, peak = memory.saved(function, x), memory.peak(function, x)
        for threads in options.threads:
            torch.set_num_threads(threads)
            columns = comparison(race(contenders, fresh, options.rounds), entry.target)
            columns["met"] = columns["met"] and max(saved, peak) <= MAX_MEMORY
            yield {
                "mapping": entry.subject.label,
                "pass": pass_,
                "shape": f"{shape[0]}x{shape[1]}",
                "scale": scale,
                "threads": threads,
                **columns,
                "saved": saved,
                "peak": peak,
            }
