"""The loss of a linear layer's scores on a GPU, forward with backward: time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import monotonic

import torch
from torch import Tensor
from torch.nn import functional

import fenchel

from .. import _gpu, ground_truth
from ..baselines import load
from ..correctness import WrongAnswerError, relative_error
from ..results import Row
from . import gpu_layers
from .gpu_layers import Layer
from .options import Options

SHAPES = tuple(product((8192,), (2048, 4096), (32000, 128256)))
SMALL = (64, 256, 2000)
"""Rows, hidden units and classes; this one is compared with float64."""
MAX_ERROR_RATIO = 2.0
"""The error of the gradients, at most, as a multiple of that of bfloat16 on all scores."""
ROUNDS = 8
SECONDS = 60
"""After which other packages are skipped."""
TARGETS = {"trained": 0.6, "initialization": 1.1}
"""On the ratio to the fastest other package."""
MAX_EXTRA_MIB, EXTRA_FROM = 1024, 128256
"""On the peak MiB beyond the gradients, and the number of classes from which on it holds."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Gradients = tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """The mean loss of hidden states, weights and classes, by a library.

    `dense` is the same loss computed on all scores, None if this is it; α = 1 is softmax.
    """

    library: str
    mapping: str
    alpha: float
    loss: Loss
    dense: Loss | None = None


Failures = dict[Entry, Exception]


def _cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(hidden @ weight.T, target)


def _unfused(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return fenchel.fenchel_young_loss(fenchel.Entmax(1.5), hidden @ weight.T, target)


TORCH = Entry("torch", "cross-entropy", 1.0, _cross_entropy)
UNFUSED = Entry("fenchel", "entmax 1.5, unfused", 1.5, _unfused)
FUSED = Entry(
    "fenchel",
    "entmax 1.5",
    1.5,
    partial(fenchel.linear_fenchel_young_loss, fenchel.Entmax(1.5)),
    _unfused,
)
BASELINES = (
    Entry(
        "liger",
        "cross-entropy",
        1.0,
        load("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"),
        _cross_entropy,
    ),
    Entry(
        "cut-cross-entropy",
        "cross-entropy",
        1.0,
        load("cut_cross_entropy", "linear_cross_entropy"),
        _cross_entropy,
    ),
)


def _run(loss: Loss, hidden: Tensor, weight: Tensor, target: Tensor) -> Gradients:
    """The gradients in the hidden states and the weights."""
    return torch.autograd.grad(loss(hidden, weight, target), (hidden, weight))


def _errors(what: str, actual: Gradients, expected: Gradients, tolerance: float) -> list[float]:
    return [
        relative_error(f"{what} of {name}", ours, theirs.double(), tolerance)
        for name, ours, theirs in zip(("hidden", "weight"), actual, expected, strict=True)
    ]


def _small_errors(entry: Entry, layer: Layer) -> list[float]:
    """The relative errors of the gradients against those in float64."""
    hidden, weight = layer.hidden.detach().double(), layer.weight.detach().double()
    residual = ground_truth.entmax(entry.alpha)(hidden @ weight.T)
    residual = (residual - functional.one_hot(layer.target, len(weight))) / len(hidden)
    expected = residual @ weight, residual.T @ hidden
    return _errors("gradient", _run(entry.loss, *layer), expected, _gpu.BASELINES_TOLERANCE)


def _accuracy(entries: list[Entry], failures: Failures) -> Iterator[Row]:
    """One row per contender; a failure, after which it is not timed, is added to the others."""
    layer = gpu_layers.trained(*SMALL)()
    allowed = _gpu.BASELINES_TOLERANCE
    for entry in entries:
        errors, note = [None, None], None
        try:
            errors = _small_errors(entry, layer)
            if entry is UNFUSED:
                allowed = MAX_ERROR_RATIO * max(errors)
            if entry is FUSED and not max(errors) <= allowed:
                raise WrongAnswerError(f"gradient wrong by {max(errors):.2g}, above {allowed:.2g}")
        except Exception as failure:  # of any kind: one failure must not end the case
            failures[entry] = failure
            note = _gpu.reason(failure)
        yield {
            "regime": "small, trained",
            "shape": "x".join(map(str, SMALL)),
            "library": entry.library,
            "mapping": entry.mapping,
            "hidden error": errors[0],
            "weight error": errors[1],
            "met": note is None if entry is FUSED else None,
            "note": note,
        }


def _contender(entry: Entry, failures: Failures) -> _gpu.Contender:
    def check(*layer: Tensor) -> float | None:
        """The error against the same loss on all scores."""
        if entry in failures:
            raise failures[entry]
        if entry.dense is None:
            return None
        expected = _run(entry.dense, *layer)
        return max(
            _errors("gradient", _run(entry.loss, *layer), expected, _gpu.BASELINES_TOLERANCE)
        )

    return _gpu.Contender(entry.library, entry.mapping, partial(_run, entry.loss), check)


def _race(
    regime: str, shape: tuple[int, int, int], contenders: list[_gpu.Contender], rounds: int
) -> Iterator[Row]:
    """One row per contender."""
    fresh = gpu_layers.REGIMES[regime](*shape)
    support = gpu_layers.support(fresh())
    results = _gpu.race(contenders, fresh, rounds)
    n, width, classes = shape
    gradients = 2 * width * (n + classes) / _gpu.MIB
    pairs = list(zip(contenders, results, strict=True))
    fastest = min(result.seconds for c, result in pairs if c.library != "fenchel")
    for contender, result in pairs:
        target = limit = met = None
        if (contender.library, contender.mapping) == (FUSED.library, FUSED.mapping):
            target = TARGETS[regime]
            limit = gradients + MAX_EXTRA_MIB if classes >= EXTRA_FROM else None
            met = result.seconds <= target * fastest
            met = met and (limit is None or (result.peak or 0) <= limit)
        yield {
            "regime": regime,
            "shape": "x".join(map(str, shape)),
            "support": support,
            **_gpu.columns(contender, result, results[0].seconds),
            "to fastest baseline": result.timing and result.seconds / fastest,
            "target": target,
            "peak MiB": result.peak,
            "gradients MiB": gradients,
            "peak target MiB": limit,
            "met": met,
            "error": result.error,
            "note": result.note,
        }


def rows(options: Options) -> Iterator[Row]:
    """One row per contender, regime and shape, then one per contender on the small layer."""
    deadline = monotonic() + SECONDS
    baselines = () if options.quick else BASELINES
    failures: Failures = {}
    # Another package sorts with torch.compile, which takes long and sorts no faster.
    with torch.compiler.set_stance("force_eager"):
        accuracy = list(_accuracy([TORCH, UNFUSED, FUSED, *baselines], failures))
        for shape, regime in product(SHAPES[:1] if options.quick else SHAPES, TARGETS):
            contenders = [_contender(entry, failures) for entry in (TORCH, FUSED, UNFUSED)]
            contenders += [
                _gpu.in_time(deadline, _contender(entry, failures)) for entry in baselines
            ]
            yield from _race(regime, shape, contenders, options.rounds if options.quick else ROUNDS)
        yield from accuracy
