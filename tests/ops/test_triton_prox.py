"""fusedmax and oscarmax in Triton against their references, in registers and in tiles.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from rows import rows_of_every_kind

from fenchel.ops import fusedmax, oscarmax

pytest.importorskip("triton", reason="Triton is not made for this platform")
from fenchel.ops.fusedmax import triton as fused
from fenchel.ops.oscarmax import triton as oscar

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
LENGTHS = [1, 20, 64, 100, 257, 2048, 4000] if CUDA else [1, 7, 30]
LONG = [17, 2000] if CUDA else [33]
OPERATORS = {
    "fusedmax": (fused.fusedmax, fusedmax.reference.fusedmax),
    "oscarmax": (oscar.oscarmax, oscarmax.reference.oscarmax),
}
JACOBIANS = {
    "fusedmax": (fused.fusedmax_jvp, fusedmax.reference.fusedmax_jvp),
    "oscarmax": (oscar.oscarmax_jvp, oscarmax.reference.oscarmax_jvp),
}
STRENGTHS = [0.0, 1e-3, 0.2, 100.0]
CASES = [*itertools.product(STRENGTHS, LENGTHS), (0.1, 65)]
DTYPES = {torch.float32: 3e-7, torch.float64: 1e-12}
HALF = [torch.bfloat16, torch.float16]

on_cuda = pytest.mark.skipif(not CUDA, reason="needs a GPU")


def check(name: str, lam: float, scores: torch.Tensor, dtype: torch.dtype, **options: int) -> None:
    """The answer is that of the reference in double precision, and equal wherever that is."""
    solve, reference = OPERATORS[name]
    rounded = scores.to(dtype)
    expected = reference(rounded.double(), lam)
    y = solve(rounded.to(DEVICE), lam, **options).cpu()
    assert y.dtype == dtype
    assert y.shape == scores.shape
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=DTYPES[dtype], equal_nan=True)
    full = expected.sum(-1) > 0
    error, reference_error = ((v.double().sum(-1) - 1).abs()[full] for v in (y, expected))
    assert (error <= 8 * torch.finfo(dtype).eps + reference_error).all()
    tied = (expected[..., 1:] == expected[..., :-1]) & (expected[..., 1:] > DTYPES[dtype])
    assert (y[..., 1:] == y[..., :-1])[tied].all()


@pytest.mark.parametrize(("lam", "d"), CASES)
@pytest.mark.parametrize("name", OPERATORS)
def test_in_registers(name: str, lam: float, d: int) -> None:
    for dtype in DTYPES:
        check(name, lam, rows_of_every_kind(d, copies=2), dtype)


@pytest.mark.parametrize("name", OPERATORS)
def test_half_precision_rounds_the_result_alone(name: str) -> None:
    solve, jvp = OPERATORS[name][0], JACOBIANS[name][0]
    for dtype in HALF:
        scores, v = torch.randn(2, 9, 20, device=DEVICE).to(dtype)
        y = solve(scores, 0.1)
        tol = 0 if CUDA else torch.finfo(dtype).eps  # the interpreter truncates
        for found, wide in (
            (y, solve(scores.float(), 0.1)),
            (jvp(y, v), jvp(y.float(), v.float())),
        ):
            torch.testing.assert_close(found, wide.to(dtype), rtol=tol, atol=0)


@pytest.mark.parametrize("d", LONG)
@pytest.mark.parametrize("lam", STRENGTHS if CUDA else [0.2])
@pytest.mark.parametrize("name", OPERATORS)
def test_in_tiles(name: str, lam: float, d: int) -> None:
    scores = rows_of_every_kind(d, copies=2)
    for dtype in DTYPES:
        few = scores if CUDA else scores[2 :: 3 if dtype == torch.float32 else 5]
        check(name, lam, few, dtype, longest=16)


@pytest.mark.parametrize("longest", [1024] if CUDA else [16, 1024])
@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobian_product(name: str, d: int, longest: int) -> None:
    jvp, reference = JACOBIANS[name]
    scores = torch.cat([torch.randn(4, d), 5 * torch.randn(2, d), torch.zeros(1, d)])
    scores[:2, ::3] = -torch.inf
    y = OPERATORS[name][1](scores.double(), 0.1)
    # Rounded values tie where the others do; here levels come back after other ones, too.
    y = torch.cat(
        [y, torch.randint(3, (2, d)).double(), torch.zeros(1, d), torch.full((1, d), torch.nan)]
    )
    for dtype, tol in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        rounded, v = y.to(dtype), torch.randn(11, d).to(dtype)
        expected = reference(rounded.double(), v.double())
        out = jvp(rounded.to(DEVICE), v.to(DEVICE), longest=longest).cpu()
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected, rtol=tol, atol=tol, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_any_shape_and_strides(name: str) -> None:
    solve, jvp = OPERATORS[name][0], JACOBIANS[name][0]
    scores = torch.randn(7, 2, 3, device=DEVICE)
    turned = scores.movedim(0, -1)
    y = solve(turned, 0.1)
    assert y.is_contiguous()
    assert y.equal(solve(turned.contiguous(), 0.1))
    assert jvp(y.mT.contiguous().mT, turned).equal(jvp(y, turned.contiguous()))
    assert solve(scores[:, 0, 0], 0.1).shape == (7,)
    for shape in ((0, 5), (3, 0)):
        nothing = torch.empty(shape, device=DEVICE)
        assert solve(nothing, 0.1).shape == jvp(nothing, nothing).shape == shape


@on_cuda
@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_waits_for_the_device(name: str) -> None:
    solve, jvp = OPERATORS[name][0], JACOBIANS[name][0]
    for d in (100, 10_000):
        scores, v = torch.randn(8, d, device=DEVICE), torch.randn(8, d, device=DEVICE)
        expected = jvp(solve(scores, 0.1), v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = jvp(solve(scores, 0.1), v)
        graph.replay()
        assert out.equal(expected)


@on_cuda
@pytest.mark.parametrize("shape", [(300, 5000), (1, 1_000_000)])
@pytest.mark.parametrize("name", OPERATORS)
def test_long_rows(name: str, shape: tuple[int, int]) -> None:
    check(name, 0.01, torch.randn(shape) / 3, torch.float32)
