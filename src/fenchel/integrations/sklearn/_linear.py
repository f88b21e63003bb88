"""The linear model: a convex problem, solved to its optimum by L-BFGS."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

from ...mappings import AbstractMapping


class Solution(NamedTuple):
    """Where L-BFGS ended."""

    coef: np.ndarray
    """(rows, features): one row for two classes, otherwise one for each class."""
    intercept: np.ndarray
    """(rows,)."""
    n_iter: int
    gradient: float
    """The largest entry of the gradient, in absolute value."""


def class_scores(X: Any, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Xcoefᵀ + intercept, (n, classes); of two classes the first has the score zero."""
    scores = np.asarray(X @ coef.T) + intercept
    return np.hstack([np.zeros_like(scores), scores]) if len(coef) == 1 else scores


def minimize_loss(
    mapping: AbstractMapping,
    X: Any,
    target: np.ndarray,
    weights: np.ndarray,
    penalty: float,
    start: tuple[np.ndarray, np.ndarray],
    fit_intercept: bool,
    tol: float,
    max_iter: int,
) -> Solution:
    """Minimizes Σ weightsᵢ L(θᵢ, yᵢ) + penalty/2 ‖coef‖² over coef and intercept.

    Args:
        X: (n, features), a NumPy array or a SciPy matrix of sparse rows.
        target: class indices (n,).
        weights: (n,), which sum to one.
        start: coef and intercept to begin with.
        tol: the largest entry of the gradient that ends the search.
    """
    shape = start[0].shape
    size = start[0].size
    classes = torch.from_numpy(target)
    per_row = torch.from_numpy(weights)

    def unpack(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        intercept = flat[size:] if fit_intercept else np.zeros(shape[0])
        return flat[:size].reshape(shape), intercept

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        coef, intercept = unpack(flat)
        narrow = coef.astype(X.dtype, copy=False)
        scores = torch.from_numpy(class_scores(X, narrow, intercept)).double().requires_grad_()
        losses = mapping.loss(scores, classes, reduction="none", ignore_index=None)
        loss = losses @ per_row
        (found,) = torch.autograd.grad(loss, scores)
        by_score = found.numpy()[:, -shape[0] :]
        gradient = np.asarray(by_score.T.astype(X.dtype, copy=False) @ X) + penalty * coef
        parts = [gradient.ravel(), by_score.sum(0)] if fit_intercept else [gradient.ravel()]
        return loss.item() + penalty / 2 * np.vdot(coef, coef), np.concatenate(parts)

    first = np.concatenate([start[0].ravel(), start[1]]) if fit_intercept else start[0].ravel()
    found = minimize(
        objective,
        first.astype(np.float64),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxls": 50, "gtol": tol, "ftol": 0.0},
    )
    return Solution(*unpack(found.x), int(found.nit), float(np.abs(found.jac).max()))
