"""The mappings on a GPU against torch.softmax and a copy: forward, and forward with backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import monotonic

import torch
from torch import Tensor

import fenchel

from .. import _gpu, ground_truth
from ..baselines import adasplash_entmax, load
from ..correctness import relative_error
from ..results import Row
from .options import Options

SHAPES = ((65536, 128), (16384, 1024), (8192, 8192), (4096, 32768), (2048, 131072))
HOST_SHAPES = ((64, 64), (65536, 128))
DTYPES = (torch.float32, torch.bfloat16)
"""Other packages are measured with the last; the first is measured before time runs out."""
ROUNDS = 12
SECONDS = 60
"""After which other packages are skipped."""

FORWARD, BOTH = "forward", "forward+backward"
TARGETS = {FORWARD: 1.0, BOTH: 0.9}
"""On the ratio to torch.softmax."""
COPY_TARGET, COPY_FROM = 1.6, 1024
"""On the ratio to a copy, forward, and the number of entries from which on it holds."""


@dataclass(frozen=True)
class Entry:
    """A mapping of a library; α is None where nothing is to be checked."""

    library: str
    mapping: str
    function: Callable[[Tensor], Tensor]
    alpha: float | None = None
    slow: bool = False


COPY = Entry("torch", "copy", lambda x: torch.empty_like(x).copy_(x))
SOFTMAX = Entry("torch", "softmax", partial(torch.softmax, dim=-1))
FENCHEL = (
    Entry("fenchel", "entmax 1.5", partial(fenchel.entmax, alpha=1.5), 1.5),
    Entry("fenchel", "entmax 1.33", partial(fenchel.entmax, alpha=1.33), 1.33),
    Entry("fenchel", "sparsemax", fenchel.sparsemax, 2.0),
)
BASELINES = (
    Entry("adasplash", "entmax 1.5", partial(adasplash_entmax, alpha=1.5), 1.5),
    Entry("adasplash", "sparsemax", partial(adasplash_entmax, alpha=2.0), 2.0),
    Entry(
        "liger",
        "sparsemax",
        load("liger_kernel.transformers.functional", "liger_sparsemax"),
        2.0,
        slow=True,
    ),
    Entry("entmax", "entmax 1.5", load("entmax", "entmax15"), 1.5, slow=True),
    Entry("entmax", "sparsemax", load("entmax", "sparsemax"), 2.0, slow=True),
)


def _run(entry: Entry, pass_: str) -> Callable[[Tensor, Tensor], Tensor]:
    def forward(x: Tensor, v: Tensor) -> Tensor:
        return entry.function(x)

    def both(x: Tensor, v: Tensor) -> Tensor:
        return torch.autograd.grad(entry.function(x), x, v)[0]

    return forward if pass_ == FORWARD else both


def _check(entry: Entry, pass_: str, x: Tensor, v: Tensor) -> float | None:
    """The error of a mapping, or of its gradient, on a few rows."""
    if entry.alpha is None:
        return None
    tolerance = _gpu.tolerance(entry.library, x.dtype)
    result = _run(entry, pass_)(x, v).detach()[_gpu.ROWS]
    expected = ground_truth.entmax(entry.alpha)(x.detach()[_gpu.ROWS].double())
    if pass_ == FORWARD:
        return relative_error("mapping", result, expected, tolerance)
    expected = ground_truth.entmax_jvp(entry.alpha, expected, v[_gpu.ROWS].double())
    return relative_error("gradient", result, expected, tolerance)


def _contender(entry: Entry, pass_: str) -> _gpu.Contender:
    run, check = _run(entry, pass_), partial(_check, entry, pass_)
    return _gpu.Contender(entry.library, entry.mapping, run, check, entry.slow)


def _inputs(shape: tuple[int, int], dtype: torch.dtype, pass_: str) -> tuple[Tensor, Tensor]:
    """Scores and a cotangent."""
    x = torch.randn(shape, dtype=dtype, device="cuda").requires_grad_(pass_ == BOTH)
    return x, torch.randn(shape, dtype=dtype, device="cuda")


def _labels(clock: str, pass_: str, dtype: torch.dtype, shape: tuple[int, int]) -> Row:
    return {
        "clock": clock,
        "pass": pass_,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": f"{shape[0]}x{shape[1]}",
    }


def _race(
    pass_: str, dtype: torch.dtype, shape: tuple[int, int], rounds: int, deadline: float | None
) -> Iterator[Row]:
    """One row per contender; other packages only where a deadline is given."""
    entries = (*((COPY,) if pass_ == FORWARD else ()), SOFTMAX, *FENCHEL)
    contenders = [_contender(entry, pass_) for entry in entries]
    if deadline is not None:
        contenders += [_gpu.in_time(deadline, _contender(entry, pass_)) for entry in BASELINES]
    results = _gpu.race(contenders, partial(_inputs, shape, dtype, pass_), rounds)
    seconds = {entry.mapping: r.seconds for entry, r in zip(entries, results, strict=False)}
    for contender, result in zip(contenders, results, strict=True):
        to_softmax, to_copy = (
            result.seconds / seconds[name] if name in seconds and result.timing else None
            for name in ("softmax", "copy")
        )
        target = copy_target = met = None
        if contender.library == "fenchel":
            target = TARGETS[pass_]
            copy_target = COPY_TARGET if pass_ == FORWARD and shape[1] >= COPY_FROM else None
            met = (to_softmax or float("inf")) <= target
            met = met and (copy_target is None or (to_copy or float("inf")) <= copy_target)
        yield {
            **_labels("gpu", pass_, dtype, shape),
            **_gpu.columns(contender, result, seconds["softmax"]),
            "target": target,
            "copy ratio": to_copy,
            "copy target": copy_target,
            "met": met,
            "error": result.error,
            "note": result.note,
        }


def _host_time(pass_: str, shape: tuple[int, int]) -> Iterator[Row]:
    """Calls in a row, the host included: for information."""
    contenders = [_contender(entry, pass_) for entry in (SOFTMAX, *FENCHEL)]
    inputs = _inputs(shape, DTYPES[-1], pass_)
    results = _gpu.host_race(contenders, inputs)
    for contender, result in zip(contenders, results, strict=True):
        yield {
            **_labels("host", pass_, DTYPES[-1], shape),
            **_gpu.columns(contender, result, results[0].seconds),
            "met": None,
            "note": result.note,
        }


def rows(options: Options) -> Iterator[Row]:
    """One row per contender, pass, type of numbers and shape."""
    deadline = monotonic() + SECONDS
    rounds = options.rounds if options.quick else ROUNDS
    shapes = SHAPES[:1] if options.quick else SHAPES
    for dtype, shape, pass_ in product(DTYPES, shapes, (FORWARD, BOTH)):
        compare = dtype == DTYPES[-1] and not options.quick
        yield from _race(pass_, dtype, shape, rounds, deadline if compare else None)
    for pass_, shape in product((FORWARD, BOTH), HOST_SHAPES):
        yield from _host_time(pass_, shape)
