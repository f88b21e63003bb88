"""SparseMAP of two factor graphs beside lp-sparsemap and a general solver, with their errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import process_time
from typing import Any

import cvxpy
import torch
from torch import Tensor

from fenchel import Budget, DependencyTree, FactorGraph, Sequence, map_inference, sparsemap
from fenchel.structures import Pair

from ..correctness import WrongAnswerError
from ..lp_sparsemap import Process
from ..results import Row
from ..timing import Timing
from .options import Options

LIMIT = 2
"""How many children a word may have."""
TAGS = 5
SIZES = (10, 20, 40)
MAX_GAP = 1e-4
"""Of the graph's own relaxation; it bounds half of the squared error of all marginals."""
MAX_ERROR = 1e-3
"""Of a marginal, beside the general solver."""
LARGEST_PROGRAM = 20
"""The general solver takes minutes for more words."""


@dataclass(frozen=True)
class Problem:
    """Scores of a graph and a cotangent, all normal in float64; couplings between 0 and 1."""

    scores: Tensor
    cotangent: Tensor
    transitions: Tensor | None = None
    coupling: Tensor | None = None

    @property
    def extra(self) -> tuple[Tensor, Tensor] | None:
        if self.transitions is None or self.coupling is None:
            return None
        return self.transitions, self.coupling

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"scores": self.scores.tolist()}
        found["cotangent"] = self.cotangent.flatten().tolist()
        if self.transitions is None or self.coupling is None:
            return {**found, "limit": LIMIT}
        extra = {"transitions": self.transitions.tolist(), "coupling": self.coupling.tolist()}
        return {**found, **extra}


class Tree:
    """A tree of n words, each with at most `LIMIT` children."""

    name = "tree, few children"

    def __init__(self, n: int) -> None:
        self.n, self.graph = n, FactorGraph((n, n))
        self.graph.add(DependencyTree(n, single_root=False), self.graph.variables)
        arcs = self.graph.variables[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
        self.graph.add(Budget(n - 1, LIMIT), arcs)

    def draw(self, generator: torch.Generator) -> Problem:
        scores, cotangent = _normal(generator, 2, self.n, self.n)
        return Problem(scores, cotangent)

    def program(self, problem: Problem) -> Tensor:
        """By one flow to each word: it comes from the root, along arcs of the tree."""
        n = self.n
        u = cvxpy.Variable((n, n), nonneg=True)
        limits: list[Any] = [
            cvxpy.sum(u, axis=0) == 1,
            cvxpy.sum(u, axis=1) - cvxpy.diag(u) <= LIMIT,
        ]
        for word in range(n):
            flow = cvxpy.Variable((n, n), nonneg=True)
            arrives = [1.0 if other == word else 0.0 for other in range(n)]
            leaves = cvxpy.sum(flow, axis=1) - cvxpy.diag(flow)
            limits += [flow <= u, cvxpy.sum(flow, axis=0) - leaves == arrives]
        return _solve(problem.scores, u, 0.0, limits)


class Sequences:
    """Two sequences of n tags; where both have the same tag at a place, that has a score."""

    name = "pair of sequences"

    def __init__(self, n: int) -> None:
        self.n, self.graph = n, FactorGraph((2, n, TAGS))
        self.graph.add(Sequence(n, TAGS), self.graph.variables)
        self.graph.add(Pair(), self.graph.variables.flatten(1).T)

    def draw(self, generator: torch.Generator) -> Problem:
        scores, cotangent = _normal(generator, 2, 2, self.n, TAGS)
        transitions = _normal(generator, 2, self.n - 1, TAGS, TAGS)
        coupling = torch.rand(self.n * TAGS, generator=generator, dtype=torch.float64)
        return Problem(scores, cotangent, transitions, coupling)

    def program(self, problem: Problem) -> Tensor:
        """By the marginals of neighbours, and of both tags at a place."""
        assert problem.extra is not None
        transitions, coupling = (x.numpy() for x in problem.extra)
        u = cvxpy.Variable((2, self.n * TAGS), nonneg=True)
        both = cvxpy.Variable(self.n * TAGS, nonneg=True)
        limits: list[Any] = [both <= u[0], both <= u[1], both >= u[0] + u[1] - 1]
        gain = coupling @ both
        for side in range(2):
            tags = cvxpy.reshape(u[side], (self.n, TAGS), order="C")
            limits.append(cvxpy.sum(tags, axis=1) == 1)
            for place in range(self.n - 1):
                pair = cvxpy.Variable((TAGS, TAGS), nonneg=True)
                limits += [cvxpy.sum(pair, axis=1) == tags[place]]
                limits += [cvxpy.sum(pair, axis=0) == tags[place + 1]]
                gain += cvxpy.sum(cvxpy.multiply(transitions[side, place], pair))
        return _solve(problem.scores.reshape(2, -1), u, gain, limits).reshape(2, self.n, TAGS)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _solve(scores: Tensor, u: Any, gain: Any, limits: list) -> Tensor:
    objective = cvxpy.sum(cvxpy.multiply(scores.numpy(), u)) + gain - cvxpy.sum_squares(u) / 2
    program = cvxpy.Problem(cvxpy.Maximize(objective), limits)
    program.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return torch.as_tensor(u.value)


def _check(subject: Tree | Sequences, problem: Problem) -> Row:
    """The gap of the marginals in their own graph, and their error beside the general solver."""
    posterior: Any = sparsemap(subject.graph, problem.scores, problem.extra)
    u, left = posterior.marginals, problem.scores - posterior.marginals
    level = (left * u).sum()
    for scores, found in zip(problem.extra or (), posterior.extra or (), strict=True):
        level = level + (scores * found).sum()
    gap = float(map_inference(subject.graph, left, problem.extra).value - level)
    row: Row = {"gap": gap, "rounds": int(posterior.iterations)}
    if not gap <= MAX_GAP or not bool(posterior.converged):
        raise WrongAnswerError(f"{subject.name} of {subject.n} has a gap of {gap:.2g}.")
    if subject.n > LARGEST_PROGRAM:
        return row
    start = process_time()
    exact = subject.program(problem)
    row["general ms"] = 1e3 * (process_time() - start)
    row["error"] = float((u - exact).abs().max())
    if not row["error"] <= MAX_ERROR:
        raise WrongAnswerError(f"{subject.name} of {subject.n} is off by {row['error']:.2g}.")
    return row


def _time(subject: Tree | Sequences, problem: Problem, with_backward: bool) -> float:
    scores = problem.scores.clone().requires_grad_(with_backward)
    start = process_time()
    u = sparsemap(subject.graph, scores, problem.extra).marginals
    if with_backward:
        torch.autograd.grad(u, scores, problem.cotangent)
    return process_time() - start


def _race(
    subject: Tree | Sequences, generator: torch.Generator, other: Process, rounds: int
) -> Row:
    """Medians in milliseconds of the processor, in turns on the same fresh problems."""
    seconds: dict[str, list[float]] = {}
    errors = []
    for turn in range(-1, rounds):
        problem = subject.draw(generator)
        found = {
            "forward": _time(subject, problem, with_backward=False),
            "both": _time(subject, problem, with_backward=True),
        }
        answer = other.solve(problem.as_json())
        if answer is not None:
            found["lp-sparsemap forward"] = answer["forward"]
            found["lp-sparsemap both"] = answer["forward"] + answer["backward"]
            ours = sparsemap(subject.graph, problem.scores, problem.extra).marginals
            errors.append(float((torch.tensor(answer["u"], dtype=ours.dtype) - ours).abs().max()))
        for name, value in found.items() if turn >= 0 else ():  # the first warms up
            seconds.setdefault(name, []).append(value)
    row: Row = {f"{name} ms": 1e3 * Timing.of(found).median for name, found in seconds.items()}
    if errors:
        for name in ("forward", "both"):
            row[f"times as fast, {name}"] = row[f"lp-sparsemap {name} ms"] / row[f"{name} ms"]
        row["lp-sparsemap differs"] = sorted(errors)[len(errors) // 2]
    return row


def rows(options: Options) -> Iterator[Row]:
    """Each graph in three sizes, by one thread."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    other = Process()
    try:
        for kind in (Tree, Sequences):
            for n in SIZES[:1] if options.quick else SIZES:
                subject = kind(n)
                checked = _check(subject, subject.draw(generator))
                measured = _race(subject, generator, other, options.rounds)
                ratio = measured.get("times as fast, both")
                met = None if ratio is None else min(ratio, measured["times as fast, forward"]) > 1
                yield {"graph": subject.name, "n": n, "met": met, **measured, **checked}
    finally:
        other.close()
