"""Rows that are hard for the fused attention kernels, and lengths of all kinds."""

from __future__ import annotations

import pytest
import torch
from attention_case import (
    CHOSEN,
    CUDA,
    SMALL,
    case,
    causal,
    sinks,
    way,  # noqa: F401
)

pytestmark = pytest.mark.usefixtures("way")


@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 40), (40, 1), (16, 16), (17, 33)])
def test_lengths(t: int, s: int) -> None:
    case(t=t, s=s).check(2e-6, 1e-5)


def test_nothing_to_do() -> None:
    for b, t, s in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        problem = case(b=b, t=t, s=s)
        output, tau, *_ = results = problem.run()
        assert output.shape == (b, 2, t, 16)
        assert output.eq(0).all()
        assert tau.eq(torch.inf).all()
        found = problem.run_backward(output, results, 31)
        for got, given in zip(found, (problem.query, problem.key, problem.value), strict=False):
            assert got.shape == given.shape
            assert got.eq(0).all()
        assert found[3].shape == (5, b, 2, t)


def test_packed_and_padded_sequences() -> None:
    problem = case(b=2, h=1, t=40, s=40)
    problem.starts = torch.zeros(2, 40, dtype=torch.int32)
    problem.stops = torch.full((2, 40), 23, dtype=torch.int32)
    problem.starts[1] = torch.tensor([0] * 7 + [7] * 18 + [25] * 15)
    problem.stops[1] = problem.diagonal + 1
    problem.stops[0, 30:] = problem.starts[0, 30:] = 23
    problem.check(2e-6, 1e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 3.0])
def test_queries_that_see_nothing(alpha: float) -> None:
    problem = case(t=9, s=20, alpha=alpha)
    problem.stops[:, :2] = 0
    problem.check(5e-6, 1e-5 if alpha <= 2 else 1e-3)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 3.0])
def test_queries_whose_mask_hides_all(alpha: float) -> None:
    problem = case(t=9, s=20, alpha=alpha, way=SMALL)
    tol = 1e-5 if alpha <= 2 else 1e-3
    problem.mask = torch.ones(1, 2, 9, 20, dtype=torch.bool)
    problem.mask[..., 3, :] = False
    problem.check(5e-6, tol)
    problem.mask = torch.zeros(1, 2, 9, 20)
    problem.mask[..., 3, :] = -torch.inf
    problem.check(5e-6, tol)
    sinks(problem)
    problem.check(5e-6, tol)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.05, 3.0])
def test_scores_that_are_not_finite(alpha: float) -> None:
    problem = causal(case(h=1, t=20, s=20, alpha=alpha))
    if CHOSEN[0] == "tiles":
        problem.mask = torch.zeros(1, 1, 20, 20)
        problem.mask[:, :, 3, 2] = torch.inf
        problem.mask[:, :, 4, 1:4] = torch.inf
    problem.key[:, :, 17, 3] = torch.nan
    output = problem.check_forward(5e-6)
    assert output[:, :, 17:].isnan().all()
    assert output[:, :, :17].isfinite().all()


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_what_nothing_sees_may_be_anything(name: str) -> None:
    problem = case(h=1, t=40, s=40)
    problem.stops[:, :30], problem.starts[:, 30:] = 25, 40  # padding of queries and keys
    clean = problem.run()
    first = clean[0].clone()
    first[:, :, 30:] = 0
    grads = problem.run_backward(first, clean, 0)
    getattr(problem, name)[:, :, 30 if name == "query" else 25 :] = torch.nan
    spoilt = problem.run()
    torch.testing.assert_close(spoilt[0][:, :, :30], clean[0][:, :, :30])
    for found, expected in zip(problem.run_backward(first, spoilt, 0)[:3], grads, strict=False):
        torch.testing.assert_close(found[:, :, :25], expected[:, :, :25])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    problem = causal(case(h=1, t=40, s=40, scale=0.1))
    clean = problem.run()[0]
    has_weight = problem.truth(problem.parameters())[1][..., 17] > 0
    assert has_weight.any()
    problem.value[:, :, 17, 3] = bad
    output = problem.run()[0]
    torch.testing.assert_close(output[:, :, :17], clean[:, :, :17])
    assert not output[..., 3].cpu()[has_weight].isfinite().any()
    others = torch.arange(16) != 3
    torch.testing.assert_close(output[..., others], clean[..., others])


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.05, 2.5, 10.0])
def test_ties(alpha: float) -> None:
    problem = case(t=4, s=60, alpha=alpha, scale=1.0)
    problem.key[..., :20, :] = problem.key[..., :1, :]
    problem.key[..., 30:50, :] = problem.key[..., 30:31, :]
    problem.query[:, :, 0] = 0  # all scores are equal
    problem.query[:, :, 1] *= 0.01
    problem.check_forward(1e-5 if alpha <= 2 else 1e-4)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.1])
def test_flat_and_far_rows(alpha: float) -> None:
    problem = case(t=16, s=3000 if CUDA else 200, alpha=alpha, scale=1.0)
    problem.query[:, :, :4] *= 1e-3
    problem.query[:, :, 4:8] *= 10
    problem.query[:, :, 8:12] *= 1e-6
    problem.check_forward(1e-4)
