"""A search for scores that SparseMAP cannot solve: ties, near ties, masks, sizes, answers as
scores; from the structures of any earlier answer; against the gap over all structures."""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import exact
from conftest import identify
from fenchel import DependencyTree, Posterior, Sequence, sparsemap, structures
from fenchel.ops import _native
from fenchel.ops.sparsemap import METHODS
from fenchel.structures import AbstractStructure

EXAMPLES = structures.examples()
every = pytest.mark.parametrize("structure", EXAMPLES, ids=identify)
needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")
SOLVERS = [pytest.param(True, marks=needs_library, id="native"), pytest.param(False, id="plain")]
solvers = pytest.mark.parametrize("native", SOLVERS)
LEAST = torch.finfo(torch.float32).min
USUAL = [0.0, 1.0, -1.0, 0.5, 1 / 3, 1 + 1e-7, 1 + 1e-13, 1e-20, -30.0, 1000.0, -torch.inf]
LARGE = [1e30, -1e30, LEAST]


def solver(native: bool) -> mock._patch:
    """Makes SparseMAP use the library's solver, or the reference around the same oracles."""
    return mock.patch.object(_native, "LIBRARY", _native.LIBRARY if native else None)


def some(size: int, values: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(values, min_size=size, max_size=size)


@st.composite
def scores(draw: st.DrawFn, shape: tuple[int, ...], earlier: list[Tensor], large: bool) -> Tensor:
    """Few values, so that there are ties; or an earlier answer, moved; some forbidden."""
    size = torch.Size(shape).numel()
    if earlier and draw(st.booleans()):
        found = draw(st.sampled_from(earlier)) * draw(st.sampled_from([1.0, -1.0, 2.0, 1e3]))
        found = found + draw(st.sampled_from([0.0, 1e-13, 1.0]))
    else:
        atoms = draw(st.lists(st.sampled_from(USUAL + LARGE * large), min_size=1, max_size=4))
        atoms += draw(st.lists(st.floats(-5, 5), max_size=2))
        values = draw(some(size, st.sampled_from(atoms)))
        found = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if draw(st.booleans()):
        forbidden_parts = torch.tensor(draw(some(size, st.booleans())), dtype=torch.bool).reshape(
            shape
        )
        found = torch.where(forbidden_parts, -torch.inf, found)
    return found


@solvers
@every
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_answer_is_optimal(
    structure: AbstractStructure, native: bool, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    shapes: list[tuple[int, ...] | None] = []
    if isinstance(structure, Sequence):
        n, m = structure.shape
        shapes = [
            data.draw(st.sampled_from([None, *given]))
            for given in ([(m, m), (n - 1, m, m)], [(m,)], [(m,)])
        ]
    earlier: list[Posterior] = []
    for _ in range(3):
        large = native and structure.name != "custom"  # whose own oracle rounds
        answers = [p.marginals.double() for p in earlier]
        theta = data.draw(scores(structure.shape, answers, large)).to(dtype)
        extra_scores = tuple(
            None if shape is None else data.draw(scores(shape, [], large)).to(dtype)
            for shape in shapes
        )
        method = data.draw(st.sampled_from([None, *METHODS]))
        tol, most = (1e-2, 200) if method == "frank_wolfe" else (1e-6, 2000)
        with solver(native), warnings.catch_warnings():
            warnings.simplefilter("ignore" if method == "frank_wolfe" else "error")
            found = sparsemap(
                structure,
                theta,
                extra_scores or None,
                method=method,
                start=data.draw(st.sampled_from([None, *earlier])),
                tol=tol,
                max_iter=most,
            )
        values = exact.totals(*exact.with_extra(structure, theta, extra_scores))
        if exact.best(values) is None:
            assert (found.marginals == 0).all()
            assert found.converged
            continue
        assert found.converged or method == "frank_wolfe"
        rounding = 3e-3 if dtype == torch.float32 else 1e-9  # scores up to 2000, and eight parts
        missed = exact.gap(structure, values, found)
        assert missed <= (tol if found.converged else float(found.gap)) + rounding
        earlier.append(found)


@solvers
@every
@pytest.mark.parametrize("method", METHODS)
def test_start_from_other_masks(structure: AbstractStructure, method: str, native: bool) -> None:
    for low in (-torch.inf, LEAST):
        for _ in range(4):
            scores = torch.randn(2, *structure.shape)
            before, now = torch.where(torch.rand(scores.shape) < 0.3, low, scores)
            tol = 1e-2 if method == "frank_wolfe" else 1e-6
            with solver(native):
                start = sparsemap(structure, before, method=method, tol=tol)
                found = sparsemap(structure, now, method=method, start=start, tol=tol)
            masked = torch.where(now == LEAST, -torch.inf, now)
            values = exact.totals(exact.members(structure).flatten(1), masked.flatten().double())
            if exact.best(values) is None:
                continue
            assert found.converged
            assert exact.gap(structure, values, found) <= tol + 1e-5


@solvers
def test_a_start_of_which_nothing_is_left(native: bool) -> None:
    scores = torch.tensor([[1.0, 0.5], [0.0, 0.0]])
    with solver(native):
        start = sparsemap(Sequence(2, 2), scores)
        for low in (-torch.inf, LEAST):
            scores[0, 0] = low
            found = sparsemap(Sequence(2, 2), scores, start=start)
            assert found.converged
            torch.testing.assert_close(found.marginals, torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
            one = sparsemap(DependencyTree(3), torch.eye(3) * 9)
            other = torch.eye(3).flip(0).where(torch.eye(3) == 0, low)
            other[1, 1] = 0.0
            cold = sparsemap(DependencyTree(3), other)
            warm = sparsemap(DependencyTree(3), other, start=one)
            torch.testing.assert_close(warm.marginals, cold.marginals, rtol=0, atol=1e-3)
