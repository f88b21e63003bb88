"""A search for scores whose best structure, log-partition or marginals are wrong: ties, near ties,
masks, sizes, marginals as scores; native operators and references, against sums of fractions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import exact
from conftest import identify
from fenchel import Sequence, structures
from fenchel.ops import _native, budget, matching, projective_tree, sequence, tree
from fenchel.structures._coded import CodedStructure

REFERENCES = {
    "sequence": sequence.reference.map_inference,
    "tree": tree.reference.map_inference,
    "projective_tree": projective_tree.reference.map_inference,
    "matching": matching.reference.map_inference,
    "budget": budget.reference.map_inference,
}
USUAL = [0.0, 1.0, -1.0, 0.5, 1 / 3, 1 + 1e-7, 1 + 1e-13, 1e-20, -30.0, 1000.0, -torch.inf]
LARGE = [1e6, -1e9, 1e17, 1e30, -1e30, 3e38, -3e38]
CODED = [s for s in structures.examples() if isinstance(s, CodedStructure)]


@st.composite
def scores(draw: st.DrawFn, shape: tuple[int, ...], large: bool) -> Tensor:
    """Few values, so that there are ties."""
    size = torch.Size(shape).numel()
    atoms = draw(st.lists(st.sampled_from(USUAL + LARGE * large), min_size=1, max_size=4))
    atoms += draw(st.lists(st.floats(-5, 5), max_size=2))
    values = draw(st.lists(st.sampled_from(atoms), min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def best(structure: CodedStructure, problem: Any, native: bool) -> Tensor:
    """The code of the best structure, by the operator or by its reference."""
    option = structure.option(problem.extra_scores)
    closed = structure.inference_operators() is None and structure.name != "matching"
    solve = structure.map_operator() if native or closed else REFERENCES[structure.oracle]
    return solve(problem.scores, problem.extra_scores, None, option)[0][0]


needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")
KERNELS = [pytest.param(True, marks=needs_library, id="native"), pytest.param(False, id="plain")]


@pytest.mark.parametrize("native", KERNELS)
@pytest.mark.parametrize("structure", CODED, ids=identify)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_answer_is_right(
    structure: CodedStructure, native: bool, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64])) if native else torch.float64
    theta = data.draw(scores(structure.shape, native)).to(dtype)
    extra_scores: tuple[Tensor | None, ...] = ()
    if isinstance(structure, Sequence):
        n, m = structure.shape
        shapes = ([(m, m), (n - 1, m, m)], [(m,)], [(m,)])
        drawn = [data.draw(st.sampled_from([None, *some])) for some in shapes]
        extra_scores = tuple(
            None if shape is None else data.draw(scores(shape, native)).to(dtype) for shape in drawn
        )
    for _ in range(2):
        rows, every_score = exact.with_extra(structure, theta, extra_scores)
        totals = exact.totals(rows, every_score)
        top = exact.best(totals)
        problem = structure.problem(theta, extra_scores or None)
        code = best(structure, problem, native)
        if top is None:
            assert (code == -1).all()
            return
        value = totals[exact.index_of(structure, code)]
        assert value is not None
        assert top - value <= (1e-15 if native else 1e-11)
        operators = structure.inference_operators()
        if operators is None:
            return
        solve = operators.marginals if native else operators.reference.marginals
        found, u, _ = solve(
            problem.scores, problem.extra_scores, None, structure.option(problem.extra_scores)
        )
        ground_truth, mean = exact.inference(rows, every_score)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-9
        assert found.item() == pytest.approx(ground_truth, rel=tolerance, abs=tolerance)
        torch.testing.assert_close(
            u.flatten().double(), mean[: u.numel()], rtol=0, atol=tolerance if native else 1e-7
        )
        theta = u[0].to(dtype)  # the answer is the next question
