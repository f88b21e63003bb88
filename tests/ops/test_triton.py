"""Every Triton kernel against its reference: on a GPU at real sizes, else in the interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from rows import hard_rows, rows_of_every_kind

from fenchel.ops import entmax, gather, ksubset, pnormmax

pytest.importorskip("triton", reason="Triton is not made for this platform")
from fenchel.ops._triton import launch
from fenchel.ops._triton.jvp import jvp
from fenchel.ops._triton.launch import solve
from fenchel.ops._triton.recorder import Recorder
from fenchel.ops._triton.root import ENTMAX, NORM, SQUARED
from fenchel.ops.entmax import triton as entmax_triton
from fenchel.ops.entmax import triton_loss as entmax_loss_triton
from fenchel.ops.gather import triton as gather_triton
from fenchel.ops.ksubset import triton as ksubset_triton

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
LENGTHS = [7, 100, 1000, 8192, 40_000] if CUDA else [1, 7, 40]
COPIES = 4 if CUDA else 1  # the interpreter takes a second for every few rows
KINDS = {
    "entmax": (ENTMAX, entmax.reference.entmax, entmax.reference.entmax_jvp),
    "normmax": (NORM, pnormmax.reference.normmax, pnormmax.reference.normmax_jvp),
    "pnormmax": (SQUARED, pnormmax.reference.pnormmax, pnormmax.reference.pnormmax_jvp),
}
VALUES = {
    "entmax": [0.5, 1.0, 1.0001, 1.1, 1.25, 1.33, 1.5, 1.75, 2.0, 3.0],
    "normmax": [1.1, 2.0, 5.0],
    "pnormmax": [1.05, 1.5, 1.9, 2.0],
}
CASES = [(name, value) for name, values in VALUES.items() for value in values]
TOLERANCES = {torch.float32: 3e-7, torch.float64: 1e-12}


@pytest.mark.parametrize("tile", [None, 16], ids=["registers", "slices"])
@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_forward(name: str, value: float, d: int, tile: int | None) -> None:
    kind, reference, _ = KINDS[name]
    if tile and d > 1000:
        tile *= 16
    scores = rows_of_every_kind(d, COPIES).to(DEVICE)
    if tile and value not in (0.5, 1.0, 1.33, 1.5, 3.0):
        return  # the same kernel as for these
    if tile and not CUDA:
        scores = scores[[0, 1, 2, 4, 6, 9, 10, 11, 12, 13, 14]]
    for dtype, atol in TOLERANCES.items():
        rounded = scores.to(dtype)
        expected = reference(rounded.double(), value)
        solved = solve(rounded, value, kind, state=kind is ENTMAX, tile=tile)
        assert solved.y is not None
        assert solved.y.dtype == dtype
        y = solved.y.double()
        torch.testing.assert_close(y, expected, rtol=0, atol=atol, equal_nan=True)
        for row in y[expected.sum(-1) > 0].tolist():
            assert abs(math.fsum(row) - 1) <= 4 * torch.finfo(dtype).eps
        if solved.value is not None:
            truth, _ = entmax.reference.entmax_max(rounded.double(), value)
            close = {"rtol": 4 * atol, "atol": 4 * atol, "equal_nan": True}
            torch.testing.assert_close(solved.value.double(), truth, **close)


@pytest.mark.skipif(not CUDA, reason="the interpreter takes minutes")
@pytest.mark.parametrize("d", [2, 10, 64, 1000, 20_000, 100_000])
@pytest.mark.parametrize("alpha", [0.5, 1.1, 1.33, 1.5, 1.99, 2.0, 3.0, 10.0])
def test_accuracy_on_hard_rows(alpha: float, d: int) -> None:
    scores = hard_rows(d).to(DEVICE)
    scores = torch.cat([scores, entmax.reference.entmax(scores, alpha)])  # fed back
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        x = scores.to(dtype)
        y = entmax.entmax(x, alpha).double()
        assert float((y - entmax.reference.entmax(x.double(), alpha)).abs().amax()) <= bound
        for row in y.tolist():
            assert abs(math.fsum(row) - 1) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("tile", [None, 16])
def test_steps_do_not_go_to_and_fro(tile: int | None) -> None:
    row = [0.247, 0.073, 0.015, -0.083, 0.072, -0.098, -0.088]
    scores = torch.tensor([row], dtype=torch.float64, device=DEVICE)
    y = solve(scores, 4.0, ENTMAX, tile=tile).y
    expected = entmax.reference.entmax(scores, 4.0)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [50.0, 1000.0])
def test_ties_share_where_alpha_is_large(alpha: float) -> None:
    rows = [[1.0, 0.0, 1.0, 1.0], [0.0, -1.0, -2.0, -3.0]]
    scores = torch.tensor(rows, dtype=torch.float64, device=DEVICE)
    expected = torch.tensor([[1, 0, 1, 1], [3, 0, 0, 0]], device=DEVICE, dtype=torch.float64) / 3
    for given in (alpha, scores.new_full((2, 1), alpha)):
        torch.testing.assert_close(solve(scores, given, ENTMAX).y, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "value"), CASES)
def test_half_precision_is_the_rounding_of_float32(
    name: str, value: float, dtype: torch.dtype
) -> None:
    kind = KINDS[name][0]
    for d in [20, *([300, 3000] if CUDA else [])]:
        scores = torch.randn(5, d, device=DEVICE).to(dtype)
        half, single = solve(scores, value, kind).y, solve(scores.float(), value, kind).y
        assert half is not None
        assert single is not None
        cut = 0 if CUDA or dtype == torch.float16 else 2**-7  # the interpreter cuts digits off
        torch.testing.assert_close(half, single.to(dtype), rtol=cut, atol=0)


@pytest.mark.parametrize("tile", [None, 16], ids=["registers", "tiles"])
@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_jacobian_product(name: str, value: float, d: int, tile: int | None) -> None:
    kind, solve_reference, reference = KINDS[name]
    half = 2 * COPIES
    scores = torch.cat([torch.randn(half, d), 5 * torch.randn(half, d), torch.zeros(1, d)])
    scores[: half // 2, ::3] = scores[-1] = -torch.inf
    y = solve_reference(scores.double().to(DEVICE), value)
    v = torch.randn_like(y)
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-9), (torch.bfloat16, 2e-2)):
        if dtype == torch.bfloat16 and value > 2:
            continue  # y^(2−α) of a rounded y is no longer small
        rounded, vector = y.to(dtype), v.to(dtype)
        expected = reference(rounded.double(), vector.double(), value)
        got = jvp(rounded, vector, value, kind, tile)
        torch.testing.assert_close(got.double(), expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("alpha", VALUES["entmax"])
def test_gradient_from_the_state(alpha: float) -> None:
    for d in LENGTHS:
        scores = rows_of_every_kind(d, COPIES).to(DEVICE)
        n = len(scores)
        target = torch.randint(d, (n, 1), device=DEVICE)
        weights = torch.rand(n, 1, dtype=torch.float64, device=DEVICE) + 0.1
        weights[::3] = 0
        for dtype, atol in TOLERANCES.items():
            rounded, weight = scores.to(dtype), weights.to(dtype)
            _, state = entmax_triton.entmax_state(rounded, alpha)
            for place in (target, None):
                got = entmax_loss_triton.entmax_gradient(rounded, state, place, weight, alpha)
                expected = entmax.reference.entmax_gradient(
                    rounded.double(), state, place, weight.double(), alpha
                )
                close = {"rtol": 0, "atol": 2 * atol, "equal_nan": True}
                torch.testing.assert_close(got.double(), expected, **close)
            over = rounded.clone()
            entmax_loss_triton.entmax_gradient_(over, state, None, weight, alpha)
            torch.testing.assert_close(over, got, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5])
def test_ksubset(alpha: float) -> None:
    for d in LENGTHS[2:] if CUDA else [7]:
        scores = rows_of_every_kind(d, COPIES).to(DEVICE)
        for k in (0.0, 0.5, 2.5, d / 2, float(d)) if CUDA else (0.5, 2.5, 7.0):
            for dtype, atol in ((torch.float32, 3e-7), (torch.float64, 1e-9)):
                got = ksubset_triton.ksubset(scores.to(dtype), k, alpha).double()
                expected = ksubset.reference.ksubset(scores.to(dtype).double(), k, alpha)
                torch.testing.assert_close(got, expected, rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_ksubset_jvp(alpha: float) -> None:
    scores, v = torch.randn(2, 6, 9, device=DEVICE)
    y = ksubset.reference.ksubset(scores.double(), 2.5, alpha).float()
    got = ksubset_triton.ksubset_jvp(y, v, alpha).double()
    expected = ksubset.reference.ksubset_jvp(y.double(), v.double(), alpha)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_one_parameter_per_row() -> None:
    alpha = torch.tensor([1.0, 1.2, 1.5, 2.0, 2.5, 3.5], device=DEVICE)[:, None]
    for d in (20, *([1500, 40_000] if CUDA else [])):
        scores, v = torch.randn(6, d, device=DEVICE), torch.randn(6, d, device=DEVICE)
        expected = entmax.reference.entmax(scores.double(), alpha.double())
        for tile in (None, 16):
            y = solve(scores, alpha, ENTMAX, tile=tile).y
            assert y is not None
            torch.testing.assert_close(y.double(), expected, rtol=0, atol=3e-7)
        moved = entmax.reference.entmax_jvp(y.double(), v.double(), alpha.double())
        torch.testing.assert_close(jvp(y, v, alpha, ENTMAX).double(), moved, rtol=1e-5, atol=1e-5)
        k = torch.tensor([0.5, 1.0, 2.0, 3.0, 3.5, 4.0], device=DEVICE)[:, None]
        got = ksubset_triton.ksubset(scores, k, 1.5).double()
        expected = ksubset.reference.ksubset(scores.double(), k, 1.5)
        torch.testing.assert_close(got, expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("d", [1, 7, 100, 300, 1000] if CUDA else [1, 7])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_few_rows_are_one_launch(
    d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of_every_kind(d, 1).to(DEVICE, dtype)
    alphas = torch.tensor([1.5, 3.0, 1.0, 0.5, 2.0, 2.5], dtype=torch.float64, device=DEVICE)
    scores = rows.repeat_interleave(len(alphas), 0)
    alpha = alphas.repeat(len(rows))[:, None]
    with Recorder() as recorder:
        few = solve(scores, alpha, ENTMAX, state=True)
    assert len(recorder.launches) == 1
    monkeypatch.setattr(launch, "FEW", 0)
    with Recorder() as recorder:
        many = solve(scores, alpha, ENTMAX, state=True)
    assert len(recorder.launches) == 2
    for found, expected in zip(few, many, strict=True):
        torch.testing.assert_close(
            found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype], equal_nan=True
        )
    expected = entmax.reference.entmax(scores.double(), alpha)
    assert few.y is not None
    torch.testing.assert_close(
        few.y.double(), expected, rtol=0, atol=TOLERANCES[dtype], equal_nan=True
    )


def test_any_strides() -> None:
    scores = torch.randn(5, 4, 6, device=DEVICE)
    repeated = scores[:, :1].expand(5, 3, 6)
    for view in (scores.movedim(0, -1), scores[:, ::2], scores[..., 1:4], repeated):
        y = entmax_triton.entmax(view, 1.5)
        assert y.is_contiguous()
        torch.testing.assert_close(y, entmax_triton.entmax(view.contiguous(), 1.5), rtol=0, atol=0)
    assert entmax_triton.entmax(torch.empty(0, 5, device=DEVICE), 1.5).shape == (0, 5)


@pytest.mark.parametrize("alpha", [1.33, 1.5, 2.0, 2.5])
def test_support(alpha: float) -> None:
    d, most = (5000, 200) if CUDA else (70, 20)
    scores = 3 * torch.randn(6, d, device=DEVICE)
    scores[1] = -torch.inf
    scores[2] = 0  # wider than what is asked for
    _, state = entmax_triton.entmax_state(scores, alpha)
    target = torch.randint(d, (6, 1), device=DEVICE)
    weights = torch.tensor([[1.0], [2.0], [0.5], [1.0], [0.0], [1.0]], device=DEVICE)
    y = entmax.reference.entmax(scores.double(), alpha)
    y = torch.where(y > 1e-12, y, 0.0)
    expected = entmax.reference.support_of(y, target, weights, most)
    got = entmax_loss_triton.entmax_support(scores, state, target, weights, most, alpha)
    assert got[2].equal(expected[2])
    assert got[0][:, 0].equal(expected[0][:, 0])
    narrow = got[2] <= 1 + most
    dense = []
    for columns, values, _ in (got, expected):
        assert columns[4].eq(d).all()
        matrix = torch.zeros(6, d + 1, dtype=torch.float64, device=DEVICE)
        dense.append(matrix.scatter_add_(1, columns.long(), values.double())[narrow, :d])
    torch.testing.assert_close(*dense, rtol=0, atol=3e-7)
    gradient = torch.where(weights == 0, 0.0, y.scatter_add(1, target, -torch.ones_like(y)))
    torch.testing.assert_close(dense[1], gradient[narrow])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gather_sum(dtype: torch.dtype) -> None:
    dense = torch.randn(9, 37, device=DEVICE).to(dtype)
    columns = torch.randint(0, 10, (5, 12), device=DEVICE, dtype=torch.int32)
    values = torch.randn(5, 12, device=DEVICE)
    matrix = torch.zeros(5, 10, dtype=torch.float64, device=DEVICE)
    matrix.scatter_add_(1, columns.long(), values.double())
    left = torch.randn(5, 37, device=DEVICE).to(dtype)
    segments = gather.transpose(columns, values, 9)
    tol = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-6}[dtype]
    expected = matrix[:, :9].T @ left.double()
    for product in (gather_triton.gather_sum, gather.gather_sum):
        got = product(left, *segments)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=tol, atol=tol)
    starts = torch.arange(5, device=DEVICE) * 12
    values[columns == 9] = 0
    columns[columns == 9] = 0
    got = gather_triton.gather_sum(dense, starts, starts + 12, columns.flatten(), values.flatten())
    torch.testing.assert_close(got.double(), matrix[:, :9] @ dense.double(), rtol=tol, atol=tol)


def test_parameters_without_a_meaning_give_nan() -> None:
    scores = torch.randn(6, 9, device=DEVICE)
    values = [[1.5], [math.nan], [0.0], [math.inf], [-1.0], [3.0]]
    alpha = torch.tensor(values, device=DEVICE, dtype=torch.float64)
    bad = [False, True, True, True, True, False]
    for tile in (None, 16):
        solved = solve(scores, alpha, ENTMAX, state=True, tile=tile)
        assert solved.y is not None
        assert solved.value is not None
        assert solved.y.isnan().all(-1).tolist() == bad
        assert solved.value.isnan().tolist() == bad
        ones = torch.ones(6, 1, device=DEVICE)
        gradient = entmax_loss_triton.entmax_gradient(scores, solved.state, None, ones, alpha)
        assert gradient.isnan().all(-1).tolist() == bad
        norm = solve(scores, alpha, NORM, tile=tile).y
        assert norm is not None
        assert norm.isnan().all(-1).tolist() == bad
    k = torch.tensor([[2.0], [math.nan], [-1.0], [10.0], [math.inf], [1.0]], device=DEVICE)
    assert ksubset_triton.ksubset(scores, k, 1.5).isnan().all(-1).tolist() == bad


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_loss_of_classes(alpha: float) -> None:
    scores = torch.randn(9, 200 if CUDA else 12, dtype=torch.float64, device=DEVICE)
    target = torch.arange(9, device=DEVICE)
    target[3], target[4] = -7, scores.shape[1]
    for dtype, tol in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        rows = scores.to(dtype)
        for given in (alpha, rows.new_full((9, 1), alpha)):
            losses, state = entmax_loss_triton.entmax_loss(rows, target, -7, given)
            expected, _ = entmax.reference.entmax_loss(rows.double(), target, -7, alpha)
            assert losses.dtype == dtype
            torch.testing.assert_close(
                losses.double(), expected, rtol=tol, atol=tol, equal_nan=True
            )
            weights = rows.new_full((), 0.5).expand(9, 1)
            gradient = entmax_loss_triton.entmax_gradient(
                rows, state, target.unsqueeze(-1), weights, given
            )
            assert gradient[3].eq(0).all()
            y = entmax.reference.entmax(rows.double(), alpha)
            torch.testing.assert_close(gradient[0, 1:].double(), y[0, 1:] / 2, rtol=0, atol=tol)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.33, 2.0, 4.0])
def test_derivative_in_alpha(alpha: float) -> None:
    scores = torch.randn(5, 3000 if CUDA else 20, dtype=torch.float64, device=DEVICE)
    y, v = entmax.reference.entmax(scores, alpha), torch.randn_like(scores)
    expected = entmax.reference.entmax_parameter_vjp(y, v, alpha)
    for dtype, tol in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        for given in (alpha, y.new_full((5, 1), alpha)):
            found = entmax_triton.entmax_parameter_vjp(y.to(dtype), v.to(dtype), given)
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), expected, rtol=tol, atol=tol)
