"""Solutions against a general convex solver, and the general solver itself."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch

import fenchel
from fenchel import General, mappings


def by_convex_solver(penalty, scores: np.ndarray, total: float = 1.0, most: float | None = None):
    """argmin of penalty(y) − <scores, y> over the simplex (or its capped version)."""
    y = cvxpy.Variable(len(scores), nonneg=True)
    limits = [cvxpy.sum(y) == total] + ([] if most is None else [y <= most])
    problem = cvxpy.Problem(cvxpy.Minimize(penalty(y) - scores @ y), limits)
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return y.value


def pairwise_max(y):
    n = y.shape[0]
    return sum(cvxpy.maximum(y[i], y[j]) for i in range(n) for j in range(i))


HALF_SQUARE = lambda y: cvxpy.sum_squares(y) / 2  # noqa: E731
CASES = {
    "sparsemax": (fenchel.Sparsemax(), HALF_SQUARE),
    "fusedmax-0.1": (fenchel.Fusedmax(0.1), lambda y: HALF_SQUARE(y) + 0.1 * cvxpy.tv(y)),
    "fusedmax-1": (fenchel.Fusedmax(1.0), lambda y: HALF_SQUARE(y) + cvxpy.tv(y)),
    "oscarmax-0.02": (fenchel.Oscarmax(0.02), lambda y: HALF_SQUARE(y) + 0.02 * pairwise_max(y)),
    "oscarmax-0.3": (fenchel.Oscarmax(0.3), lambda y: HALF_SQUARE(y) + 0.3 * pairwise_max(y)),
    "pnormmax-1.5": (fenchel.Pnormmax(1.5), lambda y: cvxpy.square(cvxpy.pnorm(y, 1.5)) / 2),
    "pnormmax-1.2": (fenchel.Pnormmax(1.2), lambda y: cvxpy.square(cvxpy.pnorm(y, 1.2)) / 2),
    "normmax-3": (fenchel.Normmax(3.0), lambda y: cvxpy.pnorm(y, 3)),
    "entmax-1.5": (fenchel.Entmax(1.5), lambda y: cvxpy.sum(cvxpy.power(y, 1.5)) / 0.75),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_against_a_convex_solver(case: str, scale: float) -> None:
    mapping, penalty = CASES[case]
    for scores in scale * torch.randn(4, 8, dtype=torch.float64):
        expected = by_convex_solver(penalty, scores.numpy())
        np.testing.assert_allclose(mapping(scores).numpy(), expected, atol=2e-5)


def test_ksubset_against_a_convex_solver() -> None:
    for scores in torch.randn(4, 8, dtype=torch.float64):
        expected = by_convex_solver(HALF_SQUARE, scores.numpy(), total=3, most=1)
        np.testing.assert_allclose(fenchel.ksubset(scores, k=3).numpy(), expected, atol=2e-5)


def test_oscarmax_is_not_the_published_approximation() -> None:
    # With negative scores the prox on absolute values shrinks towards zero from below.
    scores = torch.tensor([-1.0, -1.2, -3.0], dtype=torch.float64)
    y = fenchel.oscarmax(scores, lam=0.3)
    expected = by_convex_solver(lambda y: HALF_SQUARE(y) + 0.3 * pairwise_max(y), scores.numpy())
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-6)


def test_pnormmax_against_the_general_solver() -> None:
    def half_squared_norm(y: torch.Tensor) -> torch.Tensor:
        return (y.clamp(min=0) ** 1.5).sum(-1) ** (4 / 3) / 2

    scores = torch.randn(3, 6, dtype=torch.float64)
    general = General(half_squared_norm, tol=1e-9, max_iter=100_000)
    torch.testing.assert_close(general(scores), fenchel.pnormmax(scores, p=1.5), rtol=0, atol=1e-6)


def test_general_reports_its_status() -> None:
    scores = torch.randn(2, 3, 6, dtype=torch.float64)
    omega = next(iter(General.examples())).omega
    y, status = General(omega).solve_with_status(scores)
    assert y.shape == scores.shape
    assert status.converged.shape == (2, 3)
    assert status.converged.all()
    assert status.residual.max() <= 1e-10
    assert status.iterations.min() >= 1


def test_general_never_fails_silently() -> None:
    def stiff(y: torch.Tensor) -> torch.Tensor:
        weights = torch.logspace(0, 4, y.shape[-1], dtype=y.dtype)
        return (weights * y * y).sum(-1)

    scores = 50 * torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(fenchel.ConvergenceError, match=r"rows did not converge in `max_iter` = 3"):
        General(stiff, max_iter=3)(scores)
    with pytest.warns(fenchel.ConvergenceWarning, match="raise `max_iter`"):
        y = General(stiff, max_iter=3, on_failure="warn")(scores)
    torch.testing.assert_close(y.sum(-1), torch.ones(3, dtype=torch.float64))
    assert General(stiff)(scores).isfinite().all()


def test_general_agrees_with_sparsemax_in_all_types() -> None:
    general = mappings.get("general", omega=lambda y: (y * y).sum(-1) / 2)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        scores = torch.randn(4, 20).to(dtype)
        torch.testing.assert_close(general(scores), fenchel.sparsemax(scores))
