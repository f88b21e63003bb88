"""Rows on which solvers lose digits or do not end: every kernel against exact answers, in time."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import hard_rows

import fenchel
from fenchel.ops import _native, entmax, ksubset, pnormmax

ALPHAS = [0.3, 0.9, 1.0, 1.0001, 1.1, 1.25, 1.33, 1.5, 1.75, 1.99, 2.0, 2.01, 3.0, 4.0, 10.0, 100.0]
BOUNDS = {torch.float32: 2e-7, torch.float64: 4e-15}
GRADIENT_BOUNDS = {torch.float32: 4e-7, torch.float64: 1e-12}
"""How far an entry, and an entry of a loss's gradient, may be off: as docs/guarantees.md states."""
NAN, INF = float("nan"), float("inf")


def exact_sparsemax(row: list[float]) -> list[Fraction]:
    """In rational numbers, so that no rounding is left."""
    ordered = sorted(map(Fraction, row), reverse=True)
    total, tau = Fraction(0), Fraction(0)
    for count, score in enumerate(ordered, 1):
        total += score
        if score > (total - 1) / count:
            tau = (total - 1) / count
    return [max(Fraction(score) - tau, Fraction(0)) for score in row]


def exact_entmax(row: list[float], alpha: float) -> list[float]:
    """In hundreds of digits, by bisection on τ where y = [(α−1)(x − τ)]₊^(1/(α−1))."""
    with mpmath.workdps(400 if alpha > 20 else 120):
        x = [mpmath.mpf(score) for score in row]
        epsilon = mpmath.mpf(alpha) - 1

        def entries(tau: mpmath.mpf) -> list[mpmath.mpf]:
            inside = [epsilon * (score - tau) for score in x]
            return [u ** (1 / epsilon) if u > 0 else mpmath.mpf(0) for u in inside]

        low = max(x) - 1 / epsilon if epsilon > 0 else max(x)
        high = max(x) if epsilon > 0 else max(x) - mpmath.mpf(len(x)) ** (-epsilon) / epsilon
        for _ in range(1300 if alpha > 20 else 380):
            middle = (low + high) / 2
            if sum(entries(middle)) > 1:
                low = middle
            else:
                high = middle
        y = entries((low + high) / 2)
        return [float(value / sum(y)) for value in y]


@pytest.mark.parametrize("alpha", [0.5, 1.5, 1.99, 2.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("d", [2, 9])
def test_references_are_exact(alpha: float, d: int) -> None:
    scores = hard_rows(d)
    got = entmax.reference.entmax(scores, alpha)
    for row, y in zip(scores.tolist(), got.tolist(), strict=True):
        truth = exact_sparsemax(row) if alpha == 2 else exact_entmax(row, alpha)
        assert max(abs(a - float(b)) for a, b in zip(y, truth, strict=True)) <= 4e-15


@pytest.mark.skipif(_native.LIBRARY is None, reason="the native library is switched off")
@pytest.mark.parametrize("d", [2, 3, 10, 64, 65, 1000, 20_000])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_accuracy(alpha: float, d: int) -> None:
    scores = hard_rows(d)
    scores = torch.cat([scores, entmax.reference.entmax(scores, alpha)])  # fed back
    for dtype, bound in BOUNDS.items():
        x = scores.to(dtype)
        truth = entmax.reference.entmax(x.double(), alpha)
        for given_alpha in (alpha, torch.full((len(x), 1), alpha, dtype=torch.float64)):
            y = entmax.entmax(x, given_alpha).double()
            assert (y - truth).abs().max() <= bound
            for row in y.tolist():
                assert abs(math.fsum(row) - 1) <= 4 * torch.finfo(dtype).eps
            _, state = entmax.entmax_state(x, given_alpha)
            ones = torch.ones(len(x), 1, dtype=dtype)
            gradient = entmax.entmax_gradient(x, state, None, ones, given_alpha).double()
            assert (gradient - truth).abs().max() <= GRADIENT_BOUNDS[dtype]


@pytest.mark.parametrize("p", [1.001, 1.5, 1.999, 2.0])
def test_accuracy_of_pnormmax(p: float) -> None:
    for d in (2, 64, 1000):
        scores = hard_rows(d)
        for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            x = scores.to(dtype)
            y, truth = pnormmax.pnormmax(x, p).double(), pnormmax.reference.pnormmax(x.double(), p)
            assert (y - truth).abs().max() <= bound


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, 8.0, 100.0])
def test_ksubset_of_one_is_entmax(alpha: float) -> None:
    for d in (5, 64):
        scores = torch.cat([hard_rows(d), 1e-7 * (2 * hard_rows(d)).round()])
        for dtype, bound in ((torch.float32, 2e-7), (torch.float64, 1e-12)):
            x = scores.to(dtype)
            truth = entmax.reference.entmax(x.double(), alpha)
            for kernel in (ksubset.ksubset, ksubset.reference.ksubset):
                y = kernel(x if kernel is ksubset.ksubset else x.double(), 1.0, alpha)
                assert (y - truth).abs().max() <= bound
            sums = ksubset.ksubset(x, 2.0, alpha).double().sum(-1)
            assert (sums - 2).abs().max() <= 64 * torch.finfo(dtype).eps


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_row(data: st.DataObject) -> None:
    """A search for rows that break the bounds: levels that repeat, answers fed back, both types."""
    alpha = data.draw(st.sampled_from(ALPHAS) | st.floats(0.05, 50.0))
    dtype = data.draw(st.sampled_from(sorted(BOUNDS, key=str)))
    levels = data.draw(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
    counts = data.draw(st.lists(st.integers(1, 60), min_size=len(levels), max_size=len(levels)))
    scores = torch.tensor(levels, dtype=torch.float64).repeat_interleave(torch.tensor(counts))
    if data.draw(st.booleans()):
        scores = scores + data.draw(st.sampled_from([1e-16, 1e-8, 1e-3])) * torch.randn(len(scores))
    for _ in range(data.draw(st.integers(0, 2))):
        scores = entmax.entmax(scores, alpha)
    x = (scores * data.draw(st.sampled_from([1.0, 0.1, 10.0]))).to(dtype)
    y, truth = entmax.entmax(x, alpha).double(), entmax.reference.entmax(x.double(), alpha)
    assert (y - truth).abs().max() <= BOUNDS[dtype]


EVERYTHING = """
import sys, torch, fenchel
sys.path.insert(0, sys.argv[1])
from rows import hard_rows
alphas = (0.5, 1.0, 1.3, 1.5, 1.99, 2.0, 2.5, 9.0)
calls = [lambda x, a=a: fenchel.entmax(x, alpha=a) for a in alphas]
calls += [lambda x, p=p: fenchel.pnormmax(x, p=p) for p in (1.1, 1.999, 2.0)]
calls += [lambda x, a=a: fenchel.normmax(x, alpha=a) for a in (1.1, 2.0, 5.0)]
calls += [lambda x, k=k: fenchel.ksubset(x, k=k) for k in (1, 1.5)]
calls += [fenchel.fusedmax, fenchel.oscarmax, fenchel.Sparsemax().max]
for d in (2, 5, 64, 65, 150, 1000):
    for dtype in (torch.float32, torch.float64):
        x = hard_rows(d).to(dtype)
        for call in calls:
            y = call(x)
            assert y.isfinite().all()
            if y.shape == x.shape:
                assert call(y).isfinite().all()
quadratic = fenchel.General(lambda y: (y * y).sum(-1) / 2, max_iter=200, on_failure="warn")
assert quadratic(hard_rows(150)).isfinite().all()
print("ended")
"""


@pytest.mark.parametrize("library", ["baseline", "v3", "v4", "reference"])
def test_everything_ends(library: str) -> None:
    names = {"FENCHEL_KERNELS": "reference"} if library == "reference" else {"FENCHEL_ISA": library}
    level = 0 if _native.LIBRARY is None else _native.LIBRARY.fenchel_x86_level()
    if library in ("v3", "v4") and int(library[1]) > level:
        pytest.skip("this CPU has no such instructions")
    command = [sys.executable, "-W", "ignore", "-c", EVERYTHING, str(Path(__file__).parent)]
    environment = {**os.environ, **names, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "ended\n", done.stderr[-2000:]


BAD = [0.0, -1.0, NAN, INF, -INF]


@pytest.mark.parametrize("bad", BAD)
def test_parameters_without_a_meaning_give_nan(bad: float) -> None:
    scores = torch.randn(3, 7)
    given_rows = torch.tensor([[1.5], [bad], [2.0]])
    kernels = [entmax.entmax, entmax.reference.entmax, pnormmax.normmax, pnormmax.reference.normmax]
    for kernel in kernels:
        y = kernel(scores.double(), given_rows.double())
        assert y.isnan().all(-1).tolist() == [False, True, False]
    value, state = entmax.entmax_state(scores, given_rows)
    assert value.isnan().tolist() == [False, True, False]
    ones = torch.ones(3, 1)
    gradient = entmax.entmax_gradient(scores, state, None, ones, given_rows)
    assert gradient.isnan().all(-1).tolist() == [False, True, False]
    k = torch.tensor([[2.0], [bad if bad else -1.0], [1.0]])
    for kernel in (ksubset.ksubset, ksubset.reference.ksubset):
        y = kernel(scores.double(), k.double(), 1.5)
        assert y.isnan().all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("bad", BAD)
def test_compiled_calls_end(bad: float) -> None:
    def call(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return fenchel.entmax(x, alpha=alpha)

    y = torch.compile(call, backend="aot_eager")(torch.randn(2, 5), torch.tensor([[bad], [1.5]]))
    assert y.isnan().all(-1).tolist() == [True, False]


def test_compiled_calls_with_gamma_out_of_range() -> None:
    def call(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return fenchel.sparsemax(x, gamma=gamma)

    gamma = torch.tensor([[1.0], [0.0], [-1.0], [NAN], [INF]])
    y = torch.compile(call, backend="aot_eager")(torch.randn(5, 4), gamma)
    assert y.isnan().all(-1).tolist() == [False, True, True, True, True]
