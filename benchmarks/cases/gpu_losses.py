"""The losses on a GPU, forward with backward, against F.cross_entropy: time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic

import torch
from torch import Tensor
from torch.nn import functional

import fenchel

from .. import _gpu, ground_truth
from ..baselines import load
from ..correctness import relative_error
from ..results import Row
from .options import Options

SHAPES = ((8192, 32000), (4096, 128256))
ROUNDS = 12
SECONDS = 20
"""After which other packages are skipped."""
TARGET, PEAK_TARGET = 0.5, 1.02
"""On the ratio to F.cross_entropy, and on the peak memory in multiples of the gradient."""

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Entry:
    """The mean loss of a mapping, by a library; α is None where nothing is to be checked."""

    library: str
    mapping: str
    loss: Loss
    alpha: float | None = None


def _fenchel(mapping: fenchel.mappings.AbstractMapping, label: str, alpha: float) -> list[Entry]:
    loss = partial(fenchel.fenchel_young_loss, mapping)
    return [
        Entry("fenchel", label, loss, alpha),
        Entry("fenchel", f"{label}, in place", partial(loss, inplace=True), alpha),
    ]


def _mean(name: str, *options: float) -> Loss:
    """A loss of the `entmax` package, which gives one per row."""
    loss = load("entmax", name)
    return lambda scores, target: loss(scores, target, *options).mean()


TORCH = Entry("torch", "cross-entropy", functional.cross_entropy)
FENCHEL = (
    *_fenchel(fenchel.Entmax(1.5), "entmax 1.5", 1.5),
    *_fenchel(fenchel.Entmax(1.33), "entmax 1.33", 1.33),
    *_fenchel(fenchel.Sparsemax(), "sparsemax", 2.0),
)
BASELINES = (
    Entry("entmax", "entmax 1.5", _mean("entmax15_loss"), 1.5),
    Entry("entmax", "sparsemax", _mean("sparsemax_loss"), 2.0),
    Entry("entmax", "entmax 1.33", _mean("entmax_bisect_loss", 1.33), 1.33),
)


def _run(entry: Entry, scores: Tensor, target: Tensor) -> Tensor:
    return torch.autograd.grad(entry.loss(scores, target), scores)[0]


def _check(entry: Entry, scores: Tensor, target: Tensor) -> float | None:
    """The error of the gradient on a few rows; that of their mean loss must be small too."""
    if entry.alpha is None:
        return None
    tolerance = _gpu.tolerance(entry.library, scores.dtype)
    few, classes = scores.detach()[_gpu.ROWS], target[_gpu.ROWS]
    wide, vertex = few.double(), functional.one_hot(classes, few.shape[-1])
    y = ground_truth.entmax(entry.alpha)(wide)
    entropy = ground_truth.tsallis(entry.alpha)(y)
    loss = (((y - vertex) * wide).sum(-1) + entropy).mean()
    relative_error("loss", entry.loss(few.requires_grad_() * 1, classes).detach(), loss, tolerance)
    gradient = _run(entry, scores, target)[_gpu.ROWS]
    return relative_error("gradient", gradient, (y - vertex) / len(target), tolerance)


def _contender(entry: Entry) -> _gpu.Contender:
    run, check = partial(_run, entry), partial(_check, entry)
    return _gpu.Contender(entry.library, entry.mapping, run, check, entry in BASELINES)


def _inputs(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Scores, and a class for each row."""
    scores = torch.randn(shape, dtype=torch.bfloat16, device="cuda").requires_grad_()
    return scores, torch.randint(shape[1], shape[:1], device="cuda")


def _prepare(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as a model computes them, which a loss may overwrite."""
    return scores.clone(), target


def rows(options: Options) -> Iterator[Row]:
    """One row per contender and shape."""
    deadline = monotonic() + SECONDS
    for shape in SHAPES[:1] if options.quick else SHAPES:
        contenders = [_contender(entry) for entry in (TORCH, *FENCHEL)]
        if not options.quick:
            contenders += [_gpu.in_time(deadline, _contender(entry)) for entry in BASELINES]
        rounds = options.rounds if options.quick else ROUNDS
        results = _gpu.race(contenders, partial(_inputs, shape), rounds, _prepare)
        gradient = 2 * shape[0] * shape[1] / _gpu.MIB
        for contender, result in zip(contenders, results, strict=True):
            columns = _gpu.columns(contender, result, results[0].seconds)
            peak = result.peak and result.peak / gradient
            ours = contender.library == "fenchel"
            is_fast = result.seconds <= TARGET * results[0].seconds
            yield {
                "shape": f"{shape[0]}x{shape[1]}",
                **columns,
                "target": TARGET if ours else None,
                "peak": peak,
                "peak target": PEAK_TARGET if ours else None,
                "met": is_fast and (peak or 0) <= PEAK_TARGET if ours else None,
                "error": result.error,
                "note": result.note,
            }
