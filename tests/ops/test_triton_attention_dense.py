"""Fused attention by candidates where many keys have weight, so that lists do not take them."""

from __future__ import annotations

import pytest
import torch
from attention_case import CUDA, HALF, LISTS, Case, case, causal, dropout, per_head, rows, sinks

from fenchel.ops.attention import triton_dense, triton_scores
from fenchel.ops.attention.sizes import kept_parts

WIDE = LISTS._replace(wide=1)
"""However few keys there are, rows that are wide are dense."""
DTYPES = [torch.float32, *HALF]


def flat(strength: float = 0.05, h: int = 2, **options: object) -> Case:
    """Scores that differ little."""
    problem = case(h=h, g=1, t=20, s=280, way=WIDE, **options)
    problem.query *= strength
    return problem


def dense_classes(problem: Case) -> set[int]:
    """The classes of the blocks of queries; 0 for those by lists."""
    _, _, state = problem.run()
    return set(
        kept_parts(state, problem.query, problem.key, problem.value, WIDE.cap).dense.tolist()
    )


def check(problem: Case, needs: int = 31, rounding: float = 0.0) -> None:
    """`rounding` is what float32 has to round in the outputs besides sums of weights."""
    dtype = problem.query.dtype
    is_half = dtype != torch.float32
    tolerances = (1e-5, 8 * HALF[dtype]) if is_half else (2e-6 + rounding, 2e-5)
    problem.check(*tolerances, needs=needs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.25, 4 / 3, 1.6, 1.1])
def test_flat_rows(alpha: float, dtype: torch.dtype) -> None:
    if not CUDA and dtype == torch.float16 and alpha not in (1.5, 1.25):
        pytest.skip("the interpreter takes long, and bfloat16 has the same kernels")
    problem = flat(dtype=dtype, alpha=alpha)
    if alpha < 1.6:  # more is sparse
        assert dense_classes(problem) == {1}
    check(problem)


@pytest.mark.parametrize("alpha", [1.5, 1.25])
def test_flat_rows_of_every_length(alpha: float) -> None:
    check(causal(flat(alpha=alpha, dtype=torch.bfloat16)), needs=0)


def test_a_flat_head_beside_sharp_ones() -> None:
    problem = flat(dtype=torch.bfloat16, h=9)
    problem.query[:, 1:] *= 100
    assert dense_classes(problem) == {0, 1}
    check(problem)


def test_several_blocks_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_dense, "PROGRAMS", 1)
    if not CUDA:  # where a call is quick with few heads, and compiles nothing
        monkeypatch.setattr(triton_scores, "SIDE", type(triton_scores.SIDE)(4))
    heads = triton_scores.SIDE.value + 2
    problem = case(h=heads, g=heads // 2, t=70, s=140, way=WIDE, dtype=torch.bfloat16)
    problem.query *= 0.05
    problem.query[:, 2:4] *= 200
    assert dense_classes(problem) == {0, 1}
    check(problem, needs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alphas_of_both_classes(dtype: torch.dtype) -> None:
    problem = flat(dtype=dtype, strength=0.2)
    problem.alpha = per_head(problem, 1.25, 3.0)
    assert dense_classes(problem) == {1, 2}
    # A GPU's logarithm is right to 2⁻²², and the power of 1/(α − 1) = 4 multiplies that.
    check(problem, needs=2 + 4, rounding=4 * 2**-22 * float(problem.value.abs().amax()))


def test_scales_of_both_signs() -> None:
    problem = flat(dtype=torch.bfloat16, strength=0.2)
    problem.scale = per_head(problem, -0.5, 0.5)
    assert dense_classes(problem) == {1, 2}
    check(problem)


@pytest.mark.parametrize("scale", [-0.5, 0.5])
def test_scales_that_are_numbers(scale: float) -> None:
    check(flat(dtype=torch.bfloat16, scale=scale))


@pytest.mark.parametrize("alpha", [1.5, 1.25])
def test_ties_and_far_scores(alpha: float) -> None:
    problem = flat(alpha=alpha, strength=0.0)
    check(problem, needs=0)
    problem = flat(alpha=alpha)
    problem.key[..., 7, :] *= 400  # one key far above, or below, all others
    # Its score is a sum of products that are larger than itself.
    products = problem.scale * float((problem.query.abs() @ problem.key.abs().mT).amax())
    check(problem, needs=0, rounding=2**-24 * products)


def test_features_of_flat_rows() -> None:
    problem = causal(flat(dtype=torch.bfloat16))
    problem.gamma = rows(problem, 0.5, 2.0)
    sinks(problem)
    dropout(problem)
    check(problem)


def test_rows_that_see_nothing_or_nan_beside_flat_ones() -> None:
    problem = flat()
    problem.stops[:, 5] = 0
    problem.stops[:, :5] = 0
    problem.key[..., 279, 0] = torch.nan
    problem.stops[:, 6:12] = 279
    output, tau, _ = problem.run()
    assert output[:, :, :6].eq(0).all()
    assert tau[:, :, :6].eq(torch.inf).all()
    assert output[:, :, 6:12].isfinite().all()
    assert output[:, :, 12:].isnan().all()
