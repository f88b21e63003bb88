"""Exact answers in float64 for the mappings that are not separable, by a general convex solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy
import torch
from torch import Tensor

from .ground_truth import GroundTruth


def _program(x: Tensor, penalty: Callable[[Any], Any], ordered: bool = False) -> Tensor:
    """argmin of ½‖x − y‖² + penalty(y) on the simplex, or its decreasing part, for one row (d,)."""
    y = cvxpy.Variable(x.numel(), nonneg=True)
    objective = cvxpy.sum_squares(y - x.numpy()) / 2 + penalty(y)
    constraints = [cvxpy.sum(y) == 1, *([cvxpy.diff(y) <= 0] if ordered else [])]
    cvxpy.Problem(cvxpy.Minimize(objective), constraints).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    return torch.as_tensor(y.value)


def fusedmax(lam: float) -> GroundTruth:
    """Ω = ½‖y‖² + λ Σ |y_(i+1) − y_i|."""

    def solve(x: Tensor) -> Tensor:
        return torch.stack([_program(row, lambda y: lam * cvxpy.tv(y)) for row in x])

    return solve


def oscarmax(lam: float) -> GroundTruth:
    """Ω = ½‖y‖² + λ Σ_(i<j) max(y_i, y_j)."""

    def solve(x: Tensor) -> Tensor:
        # y has the order of x, so the i-th largest of d counts in d − i of the pairs.
        order = x.argsort(-1, descending=True)
        weights = lam * torch.arange(x.shape[-1]).flip(0).double().numpy()
        ranked = [_program(row, lambda y: weights @ y, True) for row in x.gather(-1, order)]
        return torch.zeros_like(x).scatter(-1, order, torch.stack(ranked))

    return solve
