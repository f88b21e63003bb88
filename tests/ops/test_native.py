"""Every native kernel against its reference, on rows of every kind and length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rows import rows_of_every_kind

from fenchel.ops import _native, entmax, fusedmax, ksubset, oscarmax, pnormmax

OPERATORS = {
    "entmax": (
        entmax.entmax,
        entmax.reference.entmax,
        [1.0, 1.0001, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0],
    ),
    "normmax": (pnormmax.normmax, pnormmax.reference.normmax, [1.1, 2.0, 5.0]),
    "pnormmax": (pnormmax.pnormmax, pnormmax.reference.pnormmax, [1.05, 1.3, 1.5, 1.9, 2.0]),
    "fusedmax": (fusedmax.fusedmax, fusedmax.reference.fusedmax, [0.0, 0.1, 1.0, 100.0]),
    "oscarmax": (oscarmax.oscarmax, oscarmax.reference.oscarmax, [0.0, 1e-3, 0.1, 100.0]),
}
JACOBIANS = {
    "entmax": (entmax.entmax_jvp, entmax.reference.entmax_jvp),
    "normmax": (pnormmax.normmax_jvp, pnormmax.reference.normmax_jvp),
    "pnormmax": (pnormmax.pnormmax_jvp, pnormmax.reference.pnormmax_jvp),
    "fusedmax": (fusedmax.fusedmax_jvp, fusedmax.reference.fusedmax_jvp),
    "oscarmax": (oscarmax.oscarmax_jvp, oscarmax.reference.oscarmax_jvp),
}
CASES = [(name, value) for name, (_, _, values) in OPERATORS.items() for value in values]
LENGTHS = [1, 2, 3, 7, 15, 16, 17, 33, 64, 100, 257, 1000]

pytestmark = pytest.mark.skipif(
    _native.LIBRARY is None and os.environ.get("FENCHEL_KERNELS") == "reference",
    reason="the native library is switched off",
)


def test_the_library_is_there() -> None:
    assert _native.LIBRARY is not None, _native.STATUS


@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_side_by_side_are_as_alone(d: int, dtype: torch.dtype) -> None:
    scores = torch.cat([rows_of_every_kind(d, 2).to(dtype), torch.randn(21, d, dtype=dtype) / 2])
    for solve in (
        lambda x: pnormmax.pnormmax(x, 1.3),
        lambda x: pnormmax.pnormmax(x, 1.5),
        lambda x: ksubset.ksubset(x, min(1.6, d / 2), 2.0),
        lambda x: ksubset.ksubset(x, min(12.5, d / 2), 2.0),
        lambda x: fusedmax.fusedmax(x, 0.1),
    ):
        alone = torch.cat([solve(row[None]) for row in scores])
        torch.testing.assert_close(solve(scores), alone, rtol=0, atol=0, equal_nan=True)


PROX = "scores: T*, lam: f64, rows: i64, d: i64, y: T*, threads: i32"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("no_such_function", PROX, "has no `no_such_function_f32`: it is older than the package"),
        (
            "fusedmax",
            PROX.replace("lam", "gamma"),
            r"instead of `fusedmax_f32\(.*, gamma: f64",
        ),
        ("fusedmax", PROX.replace("lam: f64", "lam: i64"), r"has `fusedmax_f32\(.*, lam: f64, "),
        ("fusedmax", PROX.replace("d: i64, ", ""), "build it again with `pip install .`"),
        (
            "sparsemap_take",
            "solutions: void*",
            r"has `sparsemap_take\(.*, width: i64",
        ),
    ],
)
def test_a_function_of_another_signature_is_refused(
    name: str, arguments: str, message: str
) -> None:
    with pytest.raises(ImportError, match=message):
        _native.NativeFunction(name, arguments)


def test_a_function_of_the_same_signature_is_called() -> None:
    scores = torch.randn(3, 5)
    y = _native.NativeFunction("fusedmax", PROX).rows(scores, 0.1)
    assert y.equal(fusedmax.fusedmax(scores, 0.1))


@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_forward(name: str, value: float, d: int) -> None:
    native, reference, _ = OPERATORS[name]
    scores = rows_of_every_kind(d)
    for dtype, atol in ((torch.float32, 3e-7), (torch.float64, 1e-12)):
        rounded = scores.to(dtype)
        expected = reference(rounded.double(), value)
        got = native(rounded, value)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol, equal_nan=True)
        finite = expected.sum(-1) == expected.sum(-1)
        sums = got.double().sum(-1)[finite & (expected.sum(-1) > 0)]
        assert (sums - 1).abs().max() <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_jacobian_product(name: str, value: float, d: int) -> None:
    solve, (native, reference) = OPERATORS[name][0], JACOBIANS[name]
    arguments = () if name in ("fusedmax", "oscarmax") else (value,)
    scores = torch.cat([torch.randn(8, d), 5 * torch.randn(4, d), torch.full((1, d), -torch.inf)])
    scores[:2, ::3] = -torch.inf
    for dtype, tol in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        y, v = solve(scores.to(dtype), value), torch.randn(13, d, dtype=dtype)
        expected = reference(y.double(), v.double(), *arguments)
        torch.testing.assert_close(native(y, v, *arguments).double(), expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.3, 1.5, 2.0, 3.0])
def test_value(alpha: float) -> None:
    for d in LENGTHS:
        scores = rows_of_every_kind(d)
        value, y = entmax.entmax_max(scores, alpha)
        expected, solution = entmax.reference.entmax_max(scores, alpha)
        torch.testing.assert_close(value, expected, equal_nan=True, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(y, solution, equal_nan=True, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 7, 16, 100, 257])
@pytest.mark.parametrize("alpha", OPERATORS["entmax"][2])
def test_gradient_from_the_state(alpha: float, d: int) -> None:
    scores = rows_of_every_kind(d)
    target = torch.randint(d, (len(scores), 1))
    weights = torch.randn(len(scores), 1, dtype=torch.float64)
    weights[::3] = 0
    weights[-5:-2] = 1  # the settled rows
    for dtype, atol in ((torch.float32, 3e-7), (torch.float64, 1e-12)):
        rounded, weight = scores.to(dtype), weights.to(dtype)
        value, state = entmax.entmax_state(rounded, alpha)
        expected = entmax.entmax_max(rounded, alpha)[0]
        torch.testing.assert_close(value, expected, equal_nan=True, rtol=4e-7, atol=atol)
        assert state.shape == (len(scores), 4)
        y = entmax.entmax_gradient(rounded, state, None, torch.ones_like(weight), alpha)
        solution = entmax.reference.entmax(rounded.double(), alpha)
        torch.testing.assert_close(y.double(), solution, rtol=0, atol=atol, equal_nan=True)
        sums = y.double().sum(-1)
        assert (sums[sums > 0] - 1).abs().max() <= 8 * torch.finfo(dtype).eps
        for place in (target, None):
            got = entmax.entmax_gradient(rounded, state, place, weight, alpha)
            truth = entmax.reference.entmax_gradient(
                rounded.double(), state, place, weight.double(), alpha
            )
            torch.testing.assert_close(got.double(), truth, rtol=0, atol=3 * atol, equal_nan=True)
            assert (got[weights[:, 0] == 0] == 0).all()
        aliased = rounded.clone()
        entmax._gradient_kernel.write((aliased, state, target, weight, alpha), aliased)
        expected = entmax.entmax_gradient(rounded, state, target, weight, alpha)
        torch.testing.assert_close(aliased, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("alpha", OPERATORS["entmax"][2])
def test_reference_states_give_the_solution(alpha: float) -> None:
    scores = rows_of_every_kind(100)
    value, state = entmax.reference.entmax_state(scores, alpha)
    expected, y = entmax.reference.entmax_max(scores, alpha)
    torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
    got = entmax.entmax_gradient(scores, state, None, torch.ones(len(scores), 1).double(), alpha)
    torch.testing.assert_close(got, y, rtol=0, atol=1e-9, equal_nan=True)
    one_per_row = torch.full((len(scores), 1), alpha, dtype=torch.float64)
    _, states = entmax.reference.entmax_state(scores, one_per_row)
    torch.testing.assert_close(states, state, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("alpha", [3.0, 4.0, 8.0])
def test_steps_do_not_go_to_and_fro(alpha: float, per_row: bool) -> None:
    scores = torch.randn(20_000, 31, dtype=torch.float64) / 100
    given = scores.new_full((20_000, 1), alpha) if per_row else alpha
    y, expected = entmax.entmax(scores, given), entmax.reference.entmax(scores, alpha)
    # An entry that joins the support within the resolution of τ may be that large.
    assert float((y - expected).abs().amax()) < 2 * 2e-16 ** (1 / (alpha - 1))


@pytest.mark.parametrize("alpha", [50.0, 1000.0])
def test_ties_share_where_alpha_is_large(alpha: float) -> None:
    scores = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, -1.0, -2.0, -3.0]], dtype=torch.float64)
    expected = torch.tensor([[1, 0, 1, 1], [3, 0, 0, 0]], dtype=torch.float64) / 3
    for given in (alpha, scores.new_full((2, 1), alpha)):
        torch.testing.assert_close(entmax.entmax(scores, given), expected)
    for dtype in (torch.float32, torch.float64):
        given = scores.to(dtype)
        _, state = entmax.entmax_state(given, alpha)
        found = entmax.entmax_gradient(given, state, None, given.new_ones(2, 1), alpha)
        torch.testing.assert_close(found, expected.to(dtype))


def test_pnormmax_does_not_go_to_and_fro() -> None:
    scores = torch.randn(20_000, 100, dtype=torch.float64) / 10
    scores *= torch.rand(20_000, 100) < 0.1
    y, expected = pnormmax.pnormmax(scores, 1.5), pnormmax.reference.pnormmax(scores, 1.5)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5])
def test_ksubset(alpha: float) -> None:
    for d in LENGTHS[3:]:
        scores = rows_of_every_kind(d)
        for k in (0.0, 0.5, 1.0, 2.5, d / 2, float(d)):
            got = ksubset.ksubset(scores, k, alpha)
            expected = ksubset.reference.ksubset(scores, k, alpha)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5])
def test_ksubset_jvp(alpha: float) -> None:
    for d in LENGTHS[3:]:
        scores = rows_of_every_kind(d)
        v = torch.randn_like(scores)
        for k in (0.5, 1.0, 2.5, d / 2, float(d)):
            y = ksubset.reference.ksubset(scores, k, alpha).nan_to_num(0.0)
            got = ksubset.ksubset_jvp(y, v, alpha)
            expected = ksubset.reference.ksubset_jvp(y, v, alpha)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
            for dtype in (torch.float32, torch.float64):
                rounded, w = y.to(dtype), v.to(dtype)
                expected = entmax.entmax_jvp(torch.where(rounded < 1, rounded, 0.0), w, alpha)
                found = ksubset.ksubset_jvp(rounded, w, alpha)
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_runs_of_one_parameter() -> None:
    scores = torch.randn(40, 30)
    alpha = torch.tensor([1.3, 1.7, 1.3, 2.5]).repeat_interleave(torch.tensor([17, 1, 9, 13]))
    y = entmax.entmax(scores, alpha.unsqueeze(-1))
    for value in (1.3, 1.7, 2.5):
        single = entmax.entmax(scores[alpha == value], float(torch.tensor(value)))
        torch.testing.assert_close(y[alpha == value], single, rtol=0, atol=2e-7)
    number = entmax.entmax(scores, float(torch.tensor(1.3)))
    same = entmax.entmax(scores, torch.full((40, 1), 1.3))
    torch.testing.assert_close(same, number, rtol=0, atol=0)


def test_one_parameter_per_row() -> None:
    scores = torch.randn(3, 4, 50)
    alpha = 1 + torch.rand(3, 4, 1)
    y = entmax.entmax(scores, alpha)
    for i in range(3):
        for j in range(4):
            single = entmax.entmax(scores[i, j], alpha[i, j, 0].item())
            torch.testing.assert_close(y[i, j], single, rtol=0, atol=2e-7)


def test_threads_do_not_change_the_answer() -> None:
    threads = torch.get_num_threads()
    scores = torch.randn(37, 3000)
    try:
        answers = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            answers.append([solve(scores, values[1]) for solve, _, values in OPERATORS.values()])
    finally:
        torch.set_num_threads(threads)
    for other in answers[1:]:
        assert all(a.equal(b) for a, b in zip(answers[0], other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    if "FENCHEL_ISA" in os.environ:
        return  # this is the inner run
    environment = {**os.environ, "FENCHEL_ISA": isa}
    files = [__file__, str(Path(__file__).with_name("test_inference.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
