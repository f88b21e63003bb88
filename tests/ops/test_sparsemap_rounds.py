"""SparseMAP by the library with an oracle in Python, against the reference with the same one."""

from __future__ import annotations

import gc
import resource

import pytest
import torch
from problems import PROBLEMS, Problem, matchings, sequences
from torch import Tensor

from fenchel.ops import _native
from fenchel.ops.sparsemap import METHODS, reference
from fenchel.ops.sparsemap.derivative import jacobian
from fenchel.ops.sparsemap.reference import Columns
from fenchel.ops.sparsemap.solution import Limits, Outcome, Support

if _native.LIBRARY is None:
    pytest.skip("there is no native library", allow_module_level=True)

from fenchel.ops.sparsemap import rounds

EXACT = Limits(1e-12, 1000)
problems = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
Solution = tuple[Tensor, Tensor, Support, Outcome]


def both(
    problem: Problem,
    scores: Tensor,
    extra_scores: Tensor,
    start: tuple[Columns, Tensor] | None = None,
    method: str = "active_set",
    limits: Limits = EXACT,
) -> tuple[Solution, Solution]:
    """The solutions of the library and of the reference."""

    def best(scores: Tensor, extra_scores: Tensor, instances: Tensor) -> tuple[Tensor, Tensor]:
        _, parts, extras, _ = problem.best(scores, extra_scores, instances)
        return parts.contiguous(), extras.contiguous()

    rest = (scores, extra_scores, start, method, limits, problem.regularize)
    return rounds.solve(best, *rest), reference.solve(problem.best, *rest)


def check(found: Solution, expected: Solution, tol: float = 1e-7) -> None:
    marginals, weights, support, outcome = found
    torch.testing.assert_close(marginals, expected[0], rtol=0, atol=tol, equal_nan=True)
    assert outcome.converged.equal(expected[3].converged)
    assert outcome.missed == expected[3].missed
    assert ((weights > 0).sum(-1) == support.sizes).all()
    kept = support.sizes > 0
    torch.testing.assert_close(weights.sum(-1), kept.double())
    mean = torch.einsum("bk,bkn->bn", weights, support.parts)
    torch.testing.assert_close(mean[kept], marginals[kept])
    gram = support.parts @ support.parts.mT + 1
    inside = torch.arange(weights.shape[1]) < support.sizes.unsqueeze(-1)
    both_inside = inside.unsqueeze(-1) & inside.unsqueeze(-2)
    if not support.extras.shape[2]:
        square = torch.where(both_inside, gram, torch.eye(weights.shape[1]).double())
        torch.testing.assert_close(support.factor.mT @ support.factor, square)


@problems
def test_marginals_are_those_of_the_reference(problem: Problem) -> None:
    for scale in (0.1, 1.0, 5.0):
        scores, extra_scores = problem.scores(6, scale)
        check(*both(problem, scores, extra_scores))
        scores, extra_scores = scores.round(), extra_scores.round()
        scores[0] = extra_scores[0] = 0
        check(*both(problem, scores, extra_scores))


@pytest.mark.parametrize("method", METHODS[1:])
@problems
def test_conditional_gradient(problem: Problem, method: str) -> None:
    scores, extra_scores = problem.scores(2)
    tol = 1e-3 if method == "frank_wolfe" else 1e-9
    found, expected = both(problem, scores, extra_scores, None, method, Limits(tol, 5000))
    check(found, expected, tol=(2 * tol) ** 0.5 * 2)
    assert (found[3].gap <= tol).all()


@problems
def test_jacobian(problem: Problem) -> None:
    scores, extra_scores = problem.scores(5)
    widths = scores.shape[1], extra_scores.shape[1]
    vectors = torch.randn_like(scores), torch.randn_like(extra_scores)
    along = [
        jacobian(solution[2], *vectors, None, widths)[:2]
        for solution in both(problem, scores, extra_scores)
    ]
    for found, expected in zip(*along, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_start_from_dependent_and_repeated_structures() -> None:
    problem = matchings(4, 4)
    scores, extra_scores = problem.scores(3, 0.1)
    codes, parts, extras = (
        torch.cat([x, x]).expand(3, -1, -1) for x in (problem.codes, problem.parts, problem.extras)
    )
    weights = torch.rand(codes.shape[:2]).double()
    start = (Columns(codes, parts, extras, torch.ones(3, dtype=torch.bool)), weights)
    check(*both(problem, scores, extra_scores, start))


def test_limits_and_what_cannot_be_solved() -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(6, 0.3)
    found, expected = both(problem, scores, extra_scores, limits=Limits(1e-9, 2))
    assert (found[3].iterations <= 2).all()
    assert found[3].converged.equal(expected[3].converged)
    assert (found[3].gap[~found[3].converged] > 1e-9).all()
    torch.testing.assert_close(found[3].gap, expected[3].gap)
    for count in (0, 1):
        found, expected = both(problem, scores[:count], extra_scores[:count])
        check(found, expected)


def test_threads_do_not_change_the_answer() -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(40)
    threads, answers = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            answers.append(both(problem, scores, extra_scores)[0])
    finally:
        torch.set_num_threads(threads)
    assert answers[0][0].equal(answers[1][0])
    assert answers[0][1].equal(answers[1][1])


def test_memory_is_freed_if_the_oracle_raises() -> None:
    scores, extras = torch.zeros(64, 20_000).double(), torch.zeros(64, 0).double()

    def interrupted(scores: Tensor, extra_scores: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        if scores is not given:
            raise ZeroDivisionError
        return torch.ones_like(scores), extra_scores

    given = scores
    peaks = []
    for _ in range(12):  # each holds about 64 MB
        with pytest.raises(ZeroDivisionError):
            rounds.solve(interrupted, scores, extras, None, "active_set", EXACT, False)
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[-1] - peaks[2] < 100_000  # KB
