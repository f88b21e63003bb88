"""The solvers of SparseMAP, native and reference, against the duality gap over all structures."""

from __future__ import annotations

import pytest
import torch
from problems import PROBLEMS, Problem, matchings, sequences
from torch import Tensor

from fenchel.ops import _native, sparsemap
from fenchel.ops.sparsemap import derivative, reference
from fenchel.ops.sparsemap.solution import Limits, Outcome, Support

EXACT = Limits(1e-12, 1000)
problems = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")
Solution = tuple[Tensor, Tensor, Support, Outcome]


def native(
    problem: Problem,
    scores: Tensor,
    extra_scores: Tensor,
    method: str = "active_set",
    limits: Limits = EXACT,
    start: tuple[Tensor, Tensor] | None = None,
) -> Solution:
    extras = extra_scores if extra_scores.shape[1] else None
    return sparsemap.solve(
        problem.oracle,
        problem.sizes,
        scores,
        extras,
        None,
        start,
        method,
        limits,
        problem.regularize,
    )


def plain(
    problem: Problem,
    scores: Tensor,
    extra_scores: Tensor,
    method: str = "active_set",
    limits: Limits = EXACT,
    start: tuple[reference.Columns, Tensor] | None = None,
) -> Solution:
    return reference.solve(
        problem.best, scores, extra_scores, start, method, limits, problem.regularize
    )


SOLVERS = [pytest.param(native, marks=needs_library, id="native"), pytest.param(plain, id="plain")]
solvers = pytest.mark.parametrize("solve", SOLVERS)


def check(
    problem: Problem, scores: Tensor, extra_scores: Tensor, solution: Solution, tol: float
) -> None:
    """The weights are a distribution with these marginals, and the gap is what it says."""
    marginals, weights, support, outcome = solution
    assert outcome.converged.all()
    assert ((weights > 0).sum(-1) == support.sizes).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(scores)).double())
    codes = torch.where((weights > 0).unsqueeze(-1), support.codes, -2)
    gap = problem.gap(scores, extra_scores, weights, codes)
    magnitude = 1 + scores.abs().amax() + (extra_scores.abs().amax() if extra_scores.numel() else 0)
    rounding = 1e-13 * float(magnitude)
    assert (gap <= tol + rounding).all()
    torch.testing.assert_close(outcome.gap, gap.clamp(min=0), rtol=1e-6, atol=rounding)
    same = (codes.unsqueeze(-2) == problem.codes).all(-1).double()
    torch.testing.assert_close(
        marginals, torch.einsum("bk,bks,sn->bn", weights, same, problem.parts)
    )


@solvers
@problems
def test_active_set_is_optimal(problem: Problem, solve: type) -> None:
    for scale in (1.0, 0.1, 5.0):
        scores, extra_scores = problem.scores(6, scale)
        check(problem, scores, extra_scores, solve(problem, scores, extra_scores), 1e-12)


@solvers
@problems
def test_ties_and_zeros(problem: Problem, solve: type) -> None:
    scores, extra_scores = problem.scores(8)
    scores, extra_scores = scores.round(), extra_scores.round()
    scores[0] = extra_scores[0] = 0
    scores[1] = 1
    check(problem, scores, extra_scores, solve(problem, scores, extra_scores), 1e-12)


@solvers
@problems
def test_large_scores(problem: Problem, solve: type) -> None:
    scores, extra_scores = problem.scores(4)
    check(problem, 1e6 * scores, extra_scores, solve(problem, 1e6 * scores, extra_scores), 1e-9)
    if problem.oracle == "budget" and not problem.sizes[2] % 2:
        return  # entries are chosen or not, so a common shift matters
    near, plain_scores = (
        solve(problem, 1e6 + scores, extra_scores),
        solve(problem, scores, extra_scores),
    )
    check(problem, 1e6 + scores, extra_scores, near, 1e-9)
    torch.testing.assert_close(near[0], plain_scores[0], rtol=0, atol=1e-4)


@solvers
@pytest.mark.parametrize("method", ["frank_wolfe", "away", "pairwise"])
@problems
def test_conditional_gradient(problem: Problem, method: str, solve: type) -> None:
    scores, extra_scores = problem.scores(2)
    tol = 1e-3 if method == "frank_wolfe" else 1e-6
    solution = solve(problem, scores, extra_scores, method, Limits(tol, 5000))
    check(problem, scores, extra_scores, solution, tol)


@needs_library
@problems
def test_jacobian(problem: Problem) -> None:
    scores, extra_scores = problem.scores(5)
    _, weights, support, _ = native(problem, scores, extra_scores)
    shapes = (*scores.shape[1:], *extra_scores.shape[1:], weights.shape[1])
    vectors = [torch.randn(5, n).double() for n in shapes]
    got = derivative.jacobian(support, *vectors, shapes[:2])
    same = (support.codes.unsqueeze(-2) == problem.codes).all(-1).double()
    dense = support._replace(parts=same @ problem.parts, extras=same @ problem.extras)
    expected = derivative.jacobian(dense, *vectors, shapes[:2])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    step = 1e-6
    after = [
        native(problem, scores + sign * step * vectors[0], extra_scores + sign * step * vectors[1])
        for sign in (1, -1)
    ]
    along = derivative.jacobian(support, *vectors[:2], None, shapes[:2])[0]
    same_support = (after[0][2].sizes == support.sizes) & (after[1][2].sizes == support.sizes)
    slope = (after[0][0] - after[1][0]) / (2 * step)
    torch.testing.assert_close(slope[same_support], along[same_support], rtol=1e-5, atol=1e-5)
    assert same_support.any()


@needs_library
def test_warm_start_from_the_solution_takes_one_round() -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(6)
    _, weights, support, outcome = native(problem, scores, extra_scores)
    assert outcome.iterations.max() > 1
    again = native(problem, scores, extra_scores, start=(support.codes, weights))
    assert (again[3].iterations == 1).all()
    torch.testing.assert_close(again[0], native(problem, scores, extra_scores)[0])
    moved = scores + 0.1 * torch.randn_like(scores)
    check(
        problem,
        moved,
        extra_scores,
        native(problem, moved, extra_scores, start=(support.codes, weights)),
        1e-12,
    )


@solvers
def test_start_from_dependent_and_repeated_structures(solve: type) -> None:
    problem = matchings(4, 4)
    scores, extra_scores = problem.scores(3, 0.1)
    everything = problem.codes.expand(3, -1, -1).contiguous()
    twice = torch.cat([everything, everything], 1)
    weights = torch.full(twice.shape[:2], 1 / twice.shape[1]).double()
    if solve is native:
        start = (twice, weights)
    else:
        rows = [torch.cat([x, x]).expand(3, -1, -1) for x in (problem.parts, problem.extras)]
        start = (reference.Columns(twice, *rows, torch.ones(3, dtype=torch.bool)), weights)
    check(problem, scores, extra_scores, solve(problem, scores, extra_scores, start=start), 1e-12)


@solvers
def test_the_limit_is_reported(solve: type) -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(6, 0.3)
    _, _, _, outcome = solve(problem, scores, extra_scores, limits=Limits(1e-9, 2))
    assert (outcome.iterations <= 2).all()
    assert not outcome.converged.all()
    assert (outcome.gap[~outcome.converged] > 1e-9).all()


@needs_library
def test_impossible_and_undefined_instances_stay_alone() -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(4)
    scores[1, :3] = -torch.inf
    scores[2, 0] = torch.nan
    scores[3, 0] = -torch.inf
    marginals, weights, support, outcome = native(problem, scores, extra_scores)
    alone = native(problem, scores[:1], extra_scores[:1])
    torch.testing.assert_close(marginals[:1], alone[0])
    assert (marginals[1] == 0).all()
    assert outcome.converged[1]
    assert marginals[2].isnan().all()
    assert outcome.gap[2].isnan()
    assert not outcome.converged[2]
    assert marginals[3, 0] == 0
    assert marginals[3].isfinite().all()
    assert (support.sizes[1:3] == 0).all()
    assert (weights[1:3] == 0).all()


@needs_library
def test_threads_do_not_change_the_answer() -> None:
    problem = sequences(4, 3, shared=True)
    scores, extra_scores = problem.scores(40)
    threads = torch.get_num_threads()
    try:
        answers = []
        for count in (1, 3):
            torch.set_num_threads(count)
            answers.append(native(problem, scores, extra_scores))
    finally:
        torch.set_num_threads(threads)
    assert answers[0][0].equal(answers[1][0])
    assert answers[0][1].equal(answers[1][1])
