"""The linear model: a convex problem, solved to its optimum by L-BFGS."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

from ...mappings import AbstractMapping

MAX_LINE_SEARCH = 50
"""How often an iteration may compute the objective."""


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
    """Minimizes Σ weightsᵢ L(θᵢ, yᵢ) + penalty/2 ‖coef‖² over coef and intercept, in float64.

    L-BFGS sees other coordinates, in which features are standardized: coef · scale, and the scores
    at the mean of the features. Features of any size then take about as many iterations.

    Args:
        X: (n, features), a NumPy array or a SciPy matrix of sparse rows.
        target: class indices (n,).
        weights: (n,), which sum to one.
        start: coef and intercept to begin with.
        tol: the largest entry of the gradient, in these coordinates, that ends the search.
    """
    X = X.astype(np.float64, copy=False)
    shape = start[0].shape
    classes, per_row = torch.from_numpy(target), torch.from_numpy(weights)
    mean, scale = _moments(X, weights, penalty, fit_intercept)

    def unpack(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        coef = flat[: scale.size * shape[0]].reshape(shape) / scale
        at_mean = flat[coef.size :] if fit_intercept else np.zeros(shape[0])
        return coef, at_mean - coef @ mean

    def pack(by_coef: np.ndarray, by_intercept: np.ndarray) -> np.ndarray:
        parts = [by_coef.ravel(), by_intercept] if fit_intercept else [by_coef.ravel()]
        return np.concatenate(parts)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        coef, intercept = unpack(flat)
        scores = torch.from_numpy(class_scores(X, coef, intercept)).requires_grad_()
        losses = mapping.loss(scores, classes, reduction="none", ignore_index=None)
        loss = losses @ per_row
        (by_scores,) = torch.autograd.grad(loss, scores)
        rows = by_scores.numpy()[:, -shape[0] :]
        by_intercept = rows.sum(0)
        by_coef = np.asarray(rows.T @ X) - np.outer(by_intercept, mean) + penalty * coef
        value = loss.item() + penalty / 2 * np.vdot(coef, coef)
        return value, pack(by_coef / scale, by_intercept)

    found = minimize(
        objective,
        pack(start[0] * scale, start[1] + start[0] @ mean),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iter,
            "maxfun": MAX_LINE_SEARCH * max_iter,
            "maxls": MAX_LINE_SEARCH,
            "gtol": tol,
            "ftol": 0.0,
        },
    )
    return Solution(*unpack(found.x), int(found.nit), float(np.abs(found.jac).max()))


def _moments(
    X: Any, weights: np.ndarray, penalty: float, fit_intercept: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each feature, zero without an intercept, and about its standard deviation.

    Raises:
        ValueError: if a feature is too large to be squared.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(weights @ X) if fit_intercept else np.zeros(X.shape[1])
        if isinstance(X, np.ndarray):
            variance = weights @ np.square(X - mean)
        else:
            variance = np.maximum(np.asarray(weights @ X.multiply(X)) - mean**2, 0.0)
    if not np.isfinite(variance).all():
        raise ValueError("`X` has features whose variance is not finite; scale them.")
    scale = np.sqrt(variance + penalty)
    return mean, np.where(scale > 0, scale, 1.0)
