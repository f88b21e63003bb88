"""The decompositions for export against the references, on rows of every kind."""

from __future__ import annotations

import pytest
import torch
from rows import rows_of_every_kind

from fenchel.ops import _decomposition, entmax, ksubset, pnormmax

CASES = {
    "entmax": (_decomposition.entmax, entmax.reference.entmax),
    "normmax": (_decomposition.normmax, pnormmax.reference.normmax),
    "pnormmax": (_decomposition.pnormmax, pnormmax.reference.pnormmax),
}
VALUES = [
    *(("entmax", alpha) for alpha in (1.0, 1.0001, 1.1, 1.25, 1.5, 1.75, 2.0)),
    *(("normmax", alpha) for alpha in (1.05, 1.2, 2.0, 5.0)),
    *(("pnormmax", p) for p in (1.05, 1.5, 1.9, 2.0)),
]
LONG = [("entmax", 1.0001), ("entmax", 1.5), ("normmax", 2.0), ("pnormmax", 1.5)]
PROBLEMS = [
    *((*case, d) for case in VALUES for d in (1, 2, 7, 128, 129)),
    *((*case, 10_000) for case in LONG),
]
ATOL = {torch.float32: 1e-6, torch.float64: 1e-12}


def rows(d: int) -> torch.Tensor:
    """Rows of every kind, and one entry ahead of many ties, on either side."""
    ahead = torch.zeros(8, d, dtype=torch.float64)
    ahead[:, 0] = torch.tensor([0.01, 0.1, 0.5, 0.7, 1.0, 2.0, 5.0, 9.0])
    return torch.cat([rows_of_every_kind(d, 2), ahead, ahead.flip(-1)])


def assert_same(
    got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, total: float = 1.0
) -> None:
    assert got.dtype == dtype
    atol = ATOL[dtype] * max(total / 8, 1)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize(("name", "value", "d"), PROBLEMS)
@pytest.mark.parametrize("dtype", ATOL)
def test_solutions(name: str, value: float, d: int, dtype: torch.dtype) -> None:
    decomposition, reference = CASES[name]
    scores = rows(d).to(dtype)
    y, expected = decomposition(scores, value), reference(scores.double(), value)
    assert_same(y, expected, dtype)
    solved = expected.sum(-1) > 0
    assert (y.double().sum(-1)[solved] - 1).abs().max() <= 16 * torch.finfo(dtype).eps
    if name != "pnormmax" and d < 1000:
        each = torch.full((len(scores), 1), value, dtype=dtype)
        assert_same(decomposition(scores, each), reference(scores.double(), each.double()), dtype)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0])
def test_values(alpha: float) -> None:
    scores = rows(300).float()
    value, y = _decomposition.entmax_max(scores, alpha)
    expected, solution = entmax.reference.entmax_max(scores.double(), alpha)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert_same(y, solution, torch.float32)


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0])
def test_subsets(alpha: float) -> None:
    for d in (7, 129, 1000):
        scores = rows(d)
        for k in (0.0, 0.5, 1.0, 2.5, d / 2, float(d)):
            for dtype in ATOL:
                y = _decomposition.ksubset(scores.to(dtype), k, alpha)
                expected = ksubset.reference.ksubset(scores.to(dtype).double(), k, alpha)
                assert_same(y, expected, dtype, k)
        each = torch.linspace(0, d, len(scores), dtype=torch.float64).unsqueeze(-1)
        expected = ksubset.reference.ksubset(scores, each, alpha)
        assert_same(_decomposition.ksubset(scores, each, alpha), expected, torch.float64, d)


def test_alpha_above_two_and_below_one() -> None:
    scores = torch.randn(50, 40, dtype=torch.float64)
    for alpha in (3.0, 4.0):
        y, expected = _decomposition.entmax(scores, alpha), entmax.reference.entmax(scores, alpha)
        # An entry that joins the support within the resolution of L may be that large.
        assert float((y - expected).abs().amax()) < 2 * 2e-16 ** (1 / (alpha - 1))
    for alpha in (50.0, 1000.0):  # ties share, however sparse
        ties = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
        torch.testing.assert_close(
            _decomposition.entmax(ties, alpha), torch.tensor([[1, 0, 1, 1]]) / 3
        )
    for alpha in (0.1, 0.5, 0.9):
        for given in (alpha, torch.full((50, 1), alpha, dtype=torch.float64)):
            y = _decomposition.entmax(scores, given)
            torch.testing.assert_close(y.sum(-1), torch.ones(50, dtype=torch.float64))
            # The slope of Ω, y^(α−1)/(α−1), differs from the scores by one number per row.
            tau = scores - y ** (alpha - 1) / (alpha - 1)
            torch.testing.assert_close(tau, tau[:, :1].expand_as(tau), rtol=0, atol=1e-9)


def test_parameters_outside_their_range_give_nan() -> None:
    scores = torch.randn(6, 9)
    bad = torch.tensor([-1.0, 0.0, torch.nan, torch.inf, -torch.inf, 1.5]).unsqueeze(-1)
    y = _decomposition.entmax(scores, bad)
    assert y[:5].isnan().all()
    torch.testing.assert_close(y[5], _decomposition.entmax(scores[5], 1.5))
    assert _decomposition.normmax(scores, bad)[:5].isnan().all()
    assert _decomposition.normmax(scores, torch.ones(6, 1)).isnan().all()
    assert _decomposition.entmax(scores, 0.0).isnan().all()


def test_half_precision_is_the_rounding_of_float32() -> None:
    scores = torch.randn(5, 200).bfloat16()
    y = _decomposition.entmax(scores, 1.3)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, _decomposition.entmax(scores.float(), 1.3).bfloat16())


def test_vertices_are_exact() -> None:
    scores = torch.tensor([[1.0, 0.0, -3.0], [0.0, 2.0, 1.0]])
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert _decomposition.entmax(scores, 2.0).equal(expected)
