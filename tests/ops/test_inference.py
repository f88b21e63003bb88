"""Every native operator of a structure against its reference, on larger and ragged instances."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from fenchel.ops import _native, budget, matching, projective_tree, sequence, tree

pytestmark = pytest.mark.skipif(
    _native.LIBRARY is None and os.environ.get("FENCHEL_KERNELS") == "reference",
    reason="the native library is switched off",
)
BATCH = 11


def chain(n: int, m: int, shared: bool) -> tuple[Tensor, Tensor]:
    shape = (m, m) if shared else (n - 1, m, m)
    transitions = torch.randn(BATCH, *shape, dtype=torch.float64)
    return torch.randn(BATCH, n, m, dtype=torch.float64), transitions


def square(n: int, m: int, option: int) -> tuple[Tensor, None]:
    return torch.randn(BATCH, n, m, dtype=torch.float64), None


def row(n: int, _: int, option: int) -> tuple[Tensor, None]:
    return torch.randn(BATCH, n, dtype=torch.float64), None


OPERATORS = {
    "sequence": (
        sequence.map_inference,
        sequence.reference.map_inference,
        sequence.inference,
        chain,
        1,
    ),
    "tree": (
        tree.map_inference,
        tree.reference.map_inference,
        tree.inference,
        square,
        1,
    ),
    "projective_tree": (
        projective_tree.map_inference,
        projective_tree.reference.map_inference,
        projective_tree.inference,
        square,
        1,
    ),
    "matching": (matching.map_inference, matching.reference.map_inference, None, square, 2),
    "budget": (budget.map_inference, budget.reference.map_inference, budget.inference, row, 1),
}
CASES = [
    *(
        ("sequence", n, m, shared)
        for n, m in [(1, 1), (7, 5), (3, 17), (4, 40)]
        for shared in (0, 1)
    ),
    *(("tree", n, n, single) for n in (2, 9, 33) for single in (0, 1)),
    *(("projective_tree", n, n, single) for n in (2, 9, 18) for single in (0, 1)),
    *(("matching", n, m, 0) for n, m in [(1, 7), (9, 4), (12, 12), (33, 33), (17, 40)]),
    *(("budget", d, 1, 2 * k + e) for d, k in [(1, 1), (9, 4), (40, 17)] for e in (0, 1)),
]


def kinds(name: str, n: int, m: int, option: int) -> list[tuple[Tensor, Tensor | None]]:
    draw = OPERATORS[name][3]
    found = []
    for kind in ("plain", "large", "ties", "forbidden"):
        scores, extra_scores = draw(n, m, option)
        if kind == "large":
            scores = 1e6 * scores
        if kind == "ties":
            scores = scores.round()
        if kind == "forbidden":
            scores[torch.rand(scores.shape) < 0.3] = -torch.inf
        found.append((scores, extra_scores))
    found[0][0][0] = torch.nan
    found[0][0][1].view(-1)[-1] = torch.inf
    return found


@pytest.mark.parametrize(("name", "n", "m", "option"), CASES)
def test_the_best_structure(name: str, n: int, m: int, option: int) -> None:
    solve, reference, _, _, sides = OPERATORS[name]
    bounds = torch.tensor([n, m][:sides])
    for scores, extra_scores in kinds(name, n, m, option):
        for lengths in (None, 1 + (torch.rand(BATCH, sides) * bounds).long()):
            _, expected = reference(scores, extra_scores, lengths, option)
            codes, values = solve(scores, extra_scores, lengths, option)
            torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-10, equal_nan=True)
            assert codes.dtype == torch.int32
            assert (codes[~values.isfinite()] == -1).all()
            narrow = None if extra_scores is None else extra_scores.float()
            _, rounded = solve(scores.float(), narrow, lengths, option)
            torch.testing.assert_close(rounded, expected, rtol=1e-5, atol=1e-4 * n, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "n", "m", "option"),
    [case for case in CASES if case[0] != "matching" and case[1] < 12],
)
def test_log_partition_marginals_and_product(name: str, n: int, m: int, option: int) -> None:
    operators = OPERATORS[name][2]
    for scores, extra_scores in kinds(name, n, m, option):
        if scores[scores.isfinite()].abs().max() > 1e3:
            continue  # autograd of the reference is not exact enough there
        for lengths in (None, torch.randint(1, n + 1, (BATCH, 1))):
            arguments = (scores, extra_scores, lengths, option)
            values, u, v = operators.marginals(*arguments)
            agree((values, u, v), operators.reference.marginals(*arguments))
            torch.testing.assert_close(
                operators.log_partition(*arguments), values, rtol=0, atol=0, equal_nan=True
            )
            of_u = torch.randn_like(scores)
            for of_v in (None,) if extra_scores is None else (None, torch.randn_like(v)):
                direction = (scores, extra_scores, of_u, of_v, lengths, option)
                kept = values.isfinite()
                agree(
                    [x[kept] for x in operators.product(*direction) if len(x)],
                    [x[kept] for x in operators.reference.product(*direction) if len(x)],
                )


def agree(found, expected) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("single", [0, 1])
def test_trees_whose_weights_have_no_room_in_a_double(single: int) -> None:
    scores = 1000 * torch.randn(BATCH, 6, 6, dtype=torch.float64)
    arguments = (scores, None, None, single)
    operators = tree.inference
    expected = operators.reference.marginals(*arguments)
    agree(operators.marginals(*arguments), expected)
    narrow = operators.marginals(scores.float(), None, None, single)
    assert all(result.isfinite().all() for result in narrow)


def test_threads_do_not_change_the_answer() -> None:
    threads = torch.get_num_threads()
    answers: list[list[Tensor]] = []
    problems = [(name, *kinds(name, 9, 9, 1)[1]) for name in OPERATORS]
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found = []
            for name, scores, extra_scores in problems:
                batch = scores.repeat(200, *[1] * (scores.ndim - 1))
                extra = None if extra_scores is None else extra_scores.repeat(200, 1, 1)
                found += OPERATORS[name][0](batch, extra, None, 1)
                if OPERATORS[name][2] is not None:
                    found += OPERATORS[name][2].marginals(batch, extra, None, 1)
            answers.append(found)
    finally:
        torch.set_num_threads(threads)
    for other in answers[1:]:
        assert all(a.equal(b) for a, b in zip(answers[0], other, strict=True))
