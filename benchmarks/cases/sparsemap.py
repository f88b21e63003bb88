"""SparseMAP in instances per second, marginals against torch-struct, how SparseMAP grows, and flat
scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fenchel import DependencyTree, Matching, Sequence, map_inference, marginals, sparsemap
from fenchel.structures import AbstractStructure

from .. import baselines
from ..correctness import WrongAnswerError
from ..results import Row
from ..timing import Contender, race
from .options import Options

BATCH = 64
MAX_GAP = 1e-6
"""Of every single instance."""
MAX_BACKWARD = 1.3
"""Forward with backward, at most, as a multiple of forward."""
TOLERANCE = 1e-4
"""On the difference to torch-struct's marginals, which add 1e-5 to a determinant's diagonal."""
MIN_SPEEDUP = 1.7
"""Two threads, at least, as a multiple of one."""


@dataclass(frozen=True)
class Speed:
    """A structure, and how many instances a second SparseMAP must solve with one thread.

    The rate is for the machine that other packages were measured on.
    """

    structure: AbstractStructure
    target: float


@dataclass(frozen=True)
class Marginals:
    """A structure, and by how much torch-struct's marginals with backward must be beaten.

    `torch_struct_rate` is torch-struct's on the machine of the targets.
    """

    structure: AbstractStructure
    torch_struct_rate: float
    min_speedup: float


SPEEDS = (
    Speed(Sequence(20, 5), 5 * 8054),
    Speed(Sequence(50, 20), 5 * 169),
    Speed(DependencyTree(10), 5 * 8501),
    Speed(DependencyTree(20), 5 * 881),
    Speed(DependencyTree(40), 5 * 93),
    Speed(Matching(10, 10), 3 * 5777),
    Speed(Matching(20, 20), 3 * 1042),
    Speed(Matching(40, 40), 10 * 47),
)
MARGINALS = (
    Marginals(Sequence(20, 5), 4283, 10),
    Marginals(Sequence(50, 20), 63, 10),
    Marginals(DependencyTree(10), 74_000, 1),
    Marginals(DependencyTree(20), 40_000, 1),
    Marginals(DependencyTree(40), 12_000, 1),
)
GROWTH = (
    *[DependencyTree(n) for n in (50, 100, 200)],
    *[Sequence(n, 5) for n in (50, 100, 200, 500)],
    *[Matching(n, n) for n in (50, 100, 200)],
)
FLAT = (Sequence(50, 20), Sequence(200, 20), DependencyTree(80), Matching(80, 80))
FLAT_SCALE = 0.01
"""Of the scores that an untrained network gives."""
Inputs = tuple[Tensor, Tensor | None, Tensor]


def _label(structure: AbstractStructure) -> str:
    return f"{structure.name} {'x'.join(map(str, structure.shape))}"


def _inputs(
    generator: torch.Generator, structure: AbstractStructure, batch: int, scale: float = 1.0
) -> Inputs:
    """Scores, transitions where there are such, and a cotangent: all normal, in float32."""
    normal = partial(torch.randn, generator=generator)
    scores = (scale * normal(batch, *structure.shape)).requires_grad_()
    extra = None
    if isinstance(structure, Sequence):
        extra = (scale * normal(structure.tags, structure.tags)).requires_grad_()
    return scores, extra, normal(batch, *structure.shape)


def _forward(structure: AbstractStructure) -> Callable[..., Tensor]:
    def run(scores: Tensor, extra: Tensor | None, cotangent: Tensor) -> Tensor:
        with torch.no_grad():
            return sparsemap(structure, scores, extra).marginals

    return run


def _with_backward(solve: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(scores: Tensor, extra: Tensor | None, cotangent: Tensor) -> Any:
        leaves = [scores] if extra is None else [scores, extra]
        return torch.autograd.grad(solve(scores, extra), leaves, cotangent)

    return run


def _sparsemap(structure: AbstractStructure) -> Callable[..., Tensor]:
    return lambda scores, extra: sparsemap(structure, scores, extra).marginals


def _fenchel(structure: AbstractStructure) -> Callable[..., Tensor]:
    def solve(scores: Tensor, extra: Tensor | None) -> Tensor:
        return (
            marginals(structure, scores)
            if extra is None
            else marginals(structure, scores, extra)[0]
        )

    return solve


def _torch_struct(structure: AbstractStructure) -> Callable[..., Tensor]:
    """The marginals by torch-struct; of a sequence from potentials of pairs, as it takes them."""
    if isinstance(structure, DependencyTree):
        trees = baselines.load("torch_struct", "NonProjectiveDependencyCRF")
        return lambda scores, extra: trees(scores).marginals
    chains = baselines.load("torch_struct", "LinearChainCRF")

    def solve(scores: Tensor, extra: Tensor) -> Tensor:
        pairs = scores[:, 1:].unsqueeze(-1) + extra.T  # entry (next, previous)
        first = torch.nn.functional.pad(
            scores[:, :1].unsqueeze(-2), (0, 0, 0, 0, 0, pairs.shape[1] - 1)
        )
        found = chains(pairs + first).marginals
        return torch.cat([found[:, :1].sum(-2), found.sum(-1)], 1)

    return solve


def _check_gap(
    structure: AbstractStructure, scores: Tensor, extra: Tensor | None, _: Tensor
) -> Row:
    """The largest gap, measured by MAP inference anew; refuses more than `MAX_GAP`."""
    scores, extra = scores.detach().double(), None if extra is None else extra.detach().double()
    posterior = sparsemap(structure, scores, extra)
    u, left = posterior.marginals, scores - posterior.marginals
    level = (left * u).flatten(1).sum(1)
    if extra is not None:
        level = level + (extra * posterior.extra).flatten(1).sum(1)
    gap = float((map_inference(structure, left, extra).value - level).max())
    if not gap <= MAX_GAP * (1 + 1e-6) or not bool(posterior.converged.all()):
        raise WrongAnswerError(
            f"{_label(structure)} has a gap of {gap:.2g}, more than {MAX_GAP:g}."
        )
    return {
        "gap": gap,
        "calls": float(posterior.iterations.double().mean()),
        "support": float(posterior.support_size.double().mean()),
    }


def _check_marginals(
    structure: AbstractStructure, scores: Tensor, extra: Tensor | None, _: Tensor
) -> None:
    """Both libraries' marginals against each other, in float64."""
    scores, extra = scores.detach().double(), None if extra is None else extra.detach().double()
    ours, theirs = _fenchel(structure)(scores, extra), _torch_struct(structure)(scores, extra)
    error = float((ours - theirs).abs().max())
    if not error <= TOLERANCE:
        raise WrongAnswerError(f"{_label(structure)} differs from torch-struct by {error:.2g}.")


def _marginal_rows(options: Options, generator: torch.Generator) -> Iterator[Row]:
    for entry in MARGINALS[:1] if options.quick else MARGINALS:
        fresh = partial(_inputs, generator, entry.structure, BATCH)
        contenders = [Contender("fenchel", _with_backward(_fenchel(entry.structure)))]
        try:
            _check_marginals(entry.structure, *fresh())
            baseline = _with_backward(_torch_struct(entry.structure))
            contenders.append(Contender("torch-struct", baseline, slow=True))
        except baselines.SkippedError:
            pass
        for threads in options.threads:
            torch.set_num_threads(threads)
            times = race(contenders, fresh, options.rounds)
            ours = BATCH / times["fenchel"].median
            theirs = BATCH / times["torch-struct"].median if "torch-struct" in times else None
            goal = entry.min_speedup * (theirs or entry.torch_struct_rate)
            yield {
                "what": "marginals+backward",
                "structure": _label(entry.structure),
                "threads": threads,
                "per second": ours,
                "target": goal,
                "met": ours >= goal if threads == 1 else None,
                "torch-struct": theirs,
                "machine": theirs / entry.torch_struct_rate if theirs and threads == 1 else None,
            }


def _speed_rows(options: Options, generator: torch.Generator, machine: float) -> Iterator[Row]:
    for entry in SPEEDS[:1] if options.quick else SPEEDS:
        structure = entry.structure
        fresh = partial(_inputs, generator, structure, BATCH)
        checked = _check_gap(structure, *fresh())
        one_thread: float | None = None
        for threads in options.threads:
            torch.set_num_threads(threads)
            contenders = [
                Contender("forward", _forward(structure)),
                Contender("both", _with_backward(_sparsemap(structure))),
            ]
            times = race(contenders, fresh, options.rounds)
            rate, ratio = (
                BATCH / times["forward"].median,
                times["both"].median / times["forward"].median,
            )
            if threads == 1:
                goal, one_thread = entry.target * machine, rate
            else:
                goal = MIN_SPEEDUP * one_thread if one_thread else None
            met = None if goal is None or threads > 2 else rate >= goal and ratio <= MAX_BACKWARD
            yield {
                "what": "sparsemap",
                "structure": _label(structure),
                "threads": threads,
                "per second": rate,
                "target": goal,
                "met": met,
                "backward": ratio,
                **checked,
            }


def _single_rows(
    generator: torch.Generator, what: str, structures: tuple[AbstractStructure, ...], scale: float
) -> Iterator[Row]:
    """A few instances of each structure, by one thread, without a target."""
    torch.set_num_threads(1)
    for structure in structures:
        fresh = partial(_inputs, generator, structure, 4, scale)
        checked = _check_gap(structure, *fresh())
        time = race([Contender("forward", _forward(structure), slow=True)], fresh, 5)["forward"]
        rate = 4 / time.median
        row = {"what": what, "structure": _label(structure), "threads": 1}
        yield {**row, "per second": rate, "target": None, "met": None, **checked}


def rows(options: Options) -> Iterator[Row]:
    """Marginals, SparseMAP with targets scaled by how fast torch-struct is here, growth, and flat
    scores."""
    generator = torch.Generator().manual_seed(0)
    scales = []
    for row in _marginal_rows(options, generator):
        if row["machine"]:
            scales.append(row["machine"])
        yield row
    yield from _speed_rows(options, generator, statistics.median(scales) if scales else 1.0)
    if not options.quick:
        yield from _single_rows(generator, "growth", GROWTH, 1.0)
        yield from _single_rows(generator, "flat", FLAT, FLAT_SCALE)
