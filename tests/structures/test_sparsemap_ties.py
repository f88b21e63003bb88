"""One distribution, not the one that rounding picks: ties between structures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import DependencyTree, Matching, Sequence, sparsemap
from fenchel.ops import _native
from fenchel.structures import _systematic

STRUCTURES = [
    DependencyTree(10),
    DependencyTree(8, projective=True),
    Matching(10, 10),
    Matching(6, 8),
    Sequence(8, 5),
]
each = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)
needs_library = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")


def distributions(posterior: Any) -> list[dict[tuple[int, ...], float]]:
    """The weight of each structure, for each instance."""
    return [
        {tuple(code): weight for code, weight in zip(codes, weights, strict=True) if weight > 0}
        for codes, weights in zip(posterior.codes.tolist(), posterior.weights.tolist(), strict=True)
    ]


def distance(a: dict, b: dict) -> float:
    """The total variation distance."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


@needs_library
@each
def test_rounding_does_not_choose(structure: Any) -> None:
    scores = torch.randn(100, *structure.shape).double()
    noise = 1e-12 * torch.randn_like(scores)
    extra = (torch.randn(5, 5).double(),) if isinstance(structure, Sequence) else ()
    near = (sparsemap(structure, x, *extra) for x in (scores, scores + noise))
    pairs = zip(*(distributions(posterior) for posterior in near), strict=True)
    assert max(distance(*pair) for pair in pairs) < 1e-6


@needs_library
@pytest.mark.parametrize(
    "structure", [DependencyTree(4), Matching(4, 4), Sequence(4, 3)], ids=identify
)
def test_scores_that_tie(structure: Any) -> None:
    """Equal scores, and those of few values."""
    scores = 0.25 * torch.randint(-2, 3, (60, *structure.shape)).double()
    scores[:20] = 0
    noise = 1e-12 * torch.randn_like(scores)
    near = (sparsemap(structure, x, method="active_set") for x in (scores, scores + noise))
    pairs = zip(*(distributions(posterior) for posterior in near), strict=True)
    assert max(distance(*pair) for pair in pairs) < 1e-6


@needs_library
def test_a_gap_of_just_the_tolerance() -> None:
    values = [-1, 0, 0, 0, 1, -1, -1, 1, 0, 1, -1, 0.0]
    scores = torch.tensor(values, dtype=torch.float64).reshape(3, 4)
    for tol in (0.2, 0.1, 0.05):
        assert sparsemap(Sequence(3, 4), scores, torch.zeros(4, 4).double(), tol=tol).converged


@needs_library
@pytest.mark.parametrize("structure", [DependencyTree(5), Matching(5, 5)], ids=identify)
def test_expectations_that_are_not_linear(structure: Any) -> None:
    """Their central differences are the gradient, where the support does not change."""
    scores = torch.randn(100, *structure.shape).double().requires_grad_()
    parts = torch.randn(structure.shape).double()

    def expectation(x: Tensor) -> Tensor:
        posterior = sparsemap(structure, x)
        values = (structure.indicator(posterior.codes) * parts).sum((-2, -1)).mul(3).sin()
        return (posterior.weights * values).sum(-1)

    (gradient,) = torch.autograd.grad(expectation(scores).sum(), scores)
    move, step = torch.randn_like(scores), 1e-7
    with torch.no_grad():
        sides = expectation(scores + step * move), expectation(scores - step * move)
    expected = (sides[0] - sides[1]) / (2 * step)
    found = (gradient * move).sum((-2, -1))
    off = (found - expected).abs() > 1e-4 * (1 + found.abs())
    assert int(off.sum()) <= 1  # a step may lead to another support


def test_equal_scores_have_a_solution() -> None:
    for structure in STRUCTURES:
        posterior = sparsemap(structure, torch.zeros(2, *structure.shape))
        assert posterior.converged.all()
        assert distributions(posterior)[0] == distributions(posterior)[1]


def test_sequences_of_marginals() -> None:
    u = torch.randn(4, 5, 3).double().softmax(-1)
    u[0, 2] = torch.tensor([0.0, 1.0, 0.0])
    u[1, 3:] = 0  # behind its end
    u[2] = 0  # without a sequence
    u[3] = torch.nan
    codes, weights = _systematic.decompose_sequences(u)
    structure = Sequence(5, 3)
    assert codes.shape[1] <= 5 * 2 + 1
    mean = (weights[..., None, None] * structure.indicator(codes)).sum(1)
    torch.testing.assert_close(mean[:3], u[:3], atol=1e-15, rtol=0)
    assert (codes[1, :, 3:] == -1).all()
    assert (weights[2:] == 0).all()
    torch.testing.assert_close(weights[:2].sum(-1), torch.ones(2).double())


def test_weights_of_sequences_are_continuous() -> None:
    scores = torch.randn(20, 6, 4).double()
    near = scores + 1e-6 * torch.randn_like(scores)
    pairs = zip(*(distributions(sparsemap(Sequence(6, 4), x)) for x in (scores, near)), strict=True)
    assert max(distance(*pair) for pair in pairs) < 1e-4
    leaf = scores[:3].requires_grad_()
    weights = sparsemap(Sequence(6, 4), leaf).weights
    v = torch.randn_like(weights)
    (gradient,) = torch.autograd.grad((weights * v).sum(), leaf)
    move, step = torch.randn_like(leaf), 1e-7
    with torch.no_grad():
        sides = [
            (sparsemap(Sequence(6, 4), leaf + s * step * move).weights * v).sum() for s in (1, -1)
        ]
    torch.testing.assert_close(
        (gradient * move).sum(), (sides[0] - sides[1]) / (2 * step), rtol=1e-5, atol=1e-6
    )


def test_sequences_in_closed_form() -> None:
    scores = torch.randn(3, 4, 3)
    scores[1, 2] = -torch.inf
    scores[2, 1, 1] = torch.inf
    posterior = sparsemap(Sequence(4, 3), scores)
    assert (posterior.iterations == 0).all()
    assert posterior.converged.tolist() == [True, True, False]
    assert (posterior.marginals[1] == 0).all()
    assert posterior.support_size[1] == 0
    assert posterior.marginals[2].isnan().all()
    short = sparsemap(Sequence(4, 3), scores[:1], lengths=torch.tensor([2]))
    alone = sparsemap(Sequence(2, 3), scores[0, :2])
    torch.testing.assert_close(short.marginals[0, :2], alone.marginals)
    assert (short.marginals[0, 2:] == 0).all()
    assert short.codes[0, :, :2].equal(alone.codes)
