"""The fused attention kernels against dense attention in float64, forward and backward."""

from __future__ import annotations

import pytest
import torch
from attention_case import (
    CHOSEN,
    CUDA,
    HALF,
    case,
    causal,
    dropout,
    per_head,
    rows,
    sinks,
    slopes,
    softcap,
    way,  # noqa: F401
)

from fenchel.ops.attention.triton import Plan

pytestmark = pytest.mark.usefixtures("way")


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33, 1.75, 1.01, 1.1])
def test_every_alpha(alpha: float) -> None:
    case(t=17, s=35, alpha=alpha).check(2e-6, 1e-5)


@pytest.mark.parametrize("alpha", [2.1, 3.0, 10.0])
def test_alpha_above_two(alpha: float) -> None:
    problem = case(t=6, s=33, alpha=alpha)
    if alpha < 5:
        problem.check(5e-5, 1e-3)
    else:  # 1/p^(α−2) would magnify what scores round
        problem.check_forward(5e-5)


def test_features_above_two() -> None:
    problem = causal(case(t=12, s=33, alpha=3.0))
    for feature in (softcap, slopes, sinks, dropout):
        feature(problem)
    problem.check(2e-5, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("least", ["key", "edge", "sink"])
def test_gradients_beside_a_tiny_weight(least: str, dtype: torch.dtype) -> None:
    """At α = 4 two scores 1365/4096 apart have the weights 1 − 8e-5 and 8e-5, and w is 1.5e8."""
    problem = case(t=5, s=36, dtype=dtype, alpha=4.0, scale=1.0)
    problem.query.zero_()
    problem.query[..., :2] = 1
    problem.key[..., :2] = -1
    problem.key[..., 3, :2] = 0
    if least == "sink":
        problem.sinks = torch.full(problem.query.shape[:-1], -1365 / 4096)
    else:
        place = 35 if least == "edge" else 20
        problem.key[..., place, :2] = torch.tensor([-1344.0, -21.0]) / 4096
    p = problem.truth(problem.parameters())[1].detach()
    assert 5e-5 < float(p[p > 0].amin()) < 2e-4
    problem.check(1e-5, 8 * HALF.get(dtype, 2**-20))


@pytest.mark.parametrize("dtype", HALF if CUDA else [torch.float16])
def test_equal_keys_above_two(dtype: torch.dtype) -> None:
    """The gradient of the queries is zero. What is left is the rounding of each of its terms, and
    none that they share; the interpreter cuts all digits of bfloat16 in the same direction."""
    problem = case(t=5, s=200, dtype=dtype, alpha=2.5)
    problem.key[:] = problem.key[:, :, :1]
    results = problem.run()
    grad = torch.randn(results[0].shape).to(dtype)
    found = problem.run_backward(grad, results, 0)[0].cpu().double()
    shared = problem.query.shape[1] // problem.key.shape[1]
    key, value = (x.double().repeat_interleave(shared, 1) for x in (problem.key, problem.value))
    dp = grad.double() @ value.mT
    terms = 0.5 * 200**0.5 * (dp - dp.amin(-1, keepdim=True)) * key[:, :, :1].abs().amax()
    assert (found.norm(dim=-1) <= HALF[dtype] * terms.norm(dim=-1)).all()


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33])
def test_causal_windows(alpha: float) -> None:
    causal(case(h=1, t=50, s=50, alpha=alpha), window=21).check(2e-6, 1e-5, needs=0)


def test_numbers_of_every_query() -> None:
    problem = case(h=4, g=2, t=10, s=25)
    problem.alpha = rows(problem, 1.05, 2.0)
    problem.alpha[..., ::5] = torch.tensor([1.5, 2.0, 1.05, 1.99])[:, None]
    problem.gamma = rows(problem, 0.3, 3.0)
    problem.scale = per_head(problem, -0.5, 0.7)
    problem.check(3e-6, 3e-5)


def test_alphas_above_and_below_two_in_one_block() -> None:
    problem = case(t=9)
    problem.alpha = torch.tensor([1.2, 1.5, 1.9, 2.0, 2.1, 2.5, 3.0, 5.0, 10.0]).expand(1, 2, 9)
    problem.check_forward(5e-5)


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 30.0, 1e4])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.2])
def test_small_and_large_gamma(alpha: float, gamma: float) -> None:
    case(t=16, alpha=alpha, gamma=gamma).check_forward(1e-3 if gamma < 0.01 else 1e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(dtype: torch.dtype) -> None:
    for alpha in (1.5, 2.0, 1.33):
        problem = causal(case(h=4, g=2, t=9, s=25, d=40, e=24, dtype=dtype, alpha=alpha))
        problem.check(1e-5, 8 * HALF[dtype])


@pytest.mark.parametrize("dtype", HALF)
def test_small_weights_are_not_rounded(dtype: torch.dtype) -> None:
    problem = case(t=3, s=2000 if CUDA else 300, dtype=dtype, scale=1e-3)
    problem.value = 1 + problem.value / 8
    output = problem.check_forward(0.0)
    expected, _ = problem.truth(problem.parameters())
    worst = (output.cpu().double() / expected.detach() - 1).abs().amax()
    assert float(worst) <= 1.01 * HALF[dtype]
    if CUDA:  # the interpreter does not round to the nearest
        assert (output.cpu() != expected.to(dtype)).double().mean() < 0.05


def test_any_strides() -> None:
    problem = case(b=2, h=2, g=2, t=17, s=19)
    problem.query = torch.randn(2, 17, 2, 16).transpose(1, 2)
    problem.key = torch.randn(2, 16, 2, 19).permute(0, 2, 3, 1)
    problem.value = torch.randn(2, 19, 2, 32).transpose(1, 2)[..., 3:19]
    if CHOSEN[0] == "tiles":
        problem.mask = (torch.rand(17, 1, 2, 1) < 0.8).permute(1, 2, 0, 3).expand(2, 2, 17, 19)
    problem.check(2e-6, 1e-5, needs=0)


def test_gradients_of_the_rows_that_are_asked_for() -> None:
    problem = case(t=5, s=9)
    slopes(problem)
    sinks(problem)
    results = problem.run()
    grad = torch.ones_like(results[0])
    *_, everything = problem.run_backward(grad, results, 31)
    for bit in range(5):
        *_, found = problem.run_backward(grad, results, 1 << bit)
        torch.testing.assert_close(found[bit], everything[bit], rtol=0, atol=0)
    assert problem.run_backward(grad, results, 0)[3].shape == (0,)


@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(x, marks=[] if CUDA else pytest.mark.slow) for x in HALF)],
)
def test_the_tiles_of_every_width(width: int, dtype: torch.dtype) -> None:
    dense = CHOSEN[0] == "tiles"
    size = (500 if dense else 700) if CUDA else 40
    problem = causal(case(t=size, s=size, d=width, e=width, dtype=dtype, scale=width**-0.5))
    problem.way = None if CUDA or dense else Plan()
    problem.check(2e-5, 8 * HALF.get(dtype, 4e-6), needs=0)
