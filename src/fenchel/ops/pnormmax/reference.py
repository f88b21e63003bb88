"""Mappings regularized by a norm, in plain PyTorch.

Both solutions are y ∝ u^(q−1), u = [scores − τ]₊, q the dual exponent 1/p + 1/q = 1. The norm
itself (normmax) asks for ‖u‖_q = 1, half its square (pnormmax) for Σ u^(q−1) = ‖u‖_q^(q−2); see
docs/concepts/mappings.md for the derivation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._roots import bracketed_root, handle_nonfinite


def norm(y: Tensor, p: float | Tensor) -> Tensor:
    """‖y‖_p of rows (..., d) that are not negative, (..., 1); one for a row of zeros."""
    # Relative to the largest entry no power that counts underflows.
    peak = y.detach().amax(-1, keepdim=True)
    peak = torch.where(peak > 0, peak, 1.0)
    support = y > 0
    powers = torch.where(support, (torch.where(support, y, peak) / peak) ** p, 0.0)
    total = powers.sum(-1, keepdim=True)
    return peak * torch.where(total > 0, total, 1.0) ** (1.0 / p)


def _norm_root(scores: Tensor, p: Tensor, factor: float, squared: bool) -> Tensor:
    """The solution, in the unknown x = −log u_max, which lies in [0, factor·log(d)/q]; NaN where p
    has no meaning."""
    is_valid = (p > 1) & (p < torch.inf)
    q = torch.where(is_valid, p / (p - 1), 2.0)

    def solve(top: Tensor) -> Tensor:
        def log_powers(x: Tensor) -> Tensor:
            return torch.log1p((x.exp() * top).clamp(min=-1.0))

        def log_sum(log_v: Tensor, power: Tensor) -> Tensor:
            return torch.logsumexp(log_v * power, -1, keepdim=True)

        def excess(x: Tensor) -> Tensor:
            log_v = log_powers(x)
            if squared:
                return log_sum(log_v, q - 1) - log_sum(log_v, q) * (q - 2) / q - x
            return log_sum(log_v, q) / q - x

        low = torch.zeros_like(top[..., :1])
        high = low + factor * math.log(top.shape[-1]) / q
        log_y = log_powers(bracketed_root(excess, low, high)) * (q - 1)
        return torch.where(is_valid, torch.softmax(log_y, -1), torch.nan)

    return handle_nonfinite(scores, solve)


def normmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """argmax over the simplex of <scores, y> − ‖y‖_α.

    Args:
        scores: (..., d).
        alpha: greater than 1; a tensor holds one per row, (..., 1).
    """
    p = torch.as_tensor(alpha, dtype=scores.dtype, device=scores.device)
    return _norm_root(scores, p, factor=1.0, squared=False)


def pnormmax(scores: Tensor, p: float) -> Tensor:
    """argmax over the simplex of <scores, y> − ½‖y‖_p², 1 < p ≤ 2."""
    exponent = torch.as_tensor(p, dtype=scores.dtype, device=scores.device)
    return _norm_root(scores, exponent, factor=2.0, squared=True)


def _curvature(y: Tensor, p: float | Tensor) -> tuple[Tensor, Tensor]:
    """y^(2−p) on the support, (..., d), and ‖y‖_p, (..., 1)."""
    support = y > 0
    safe = torch.where(support, y, 1.0)
    s = torch.where(support, safe ** (2.0 - p), 0.0)
    total = torch.where(support, safe**p, 0.0).sum(-1, keepdim=True)
    return s, torch.where(total > 0, total, 1.0) ** (1.0 / p)


def normmax_jvp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """The Jacobian of normmax times v, in differentiable operations."""
    s, norm = _curvature(y, alpha)
    s = s * norm ** (alpha - 1.0) / (alpha - 1.0)
    moved = s * (v - (y * v).sum(-1, keepdim=True))
    return moved - y * moved.sum(-1, keepdim=True)


def pnormmax_jvp(y: Tensor, v: Tensor, p: float) -> Tensor:
    """The Jacobian of pnormmax times v, in differentiable operations."""
    s, norm = _curvature(y, p)
    s = s * norm ** (p - 2.0) / (p - 1.0)
    bend = (2.0 - p) / (p - 1.0) / norm**2
    along = (y * v).sum(-1, keepdim=True)
    mass = s.sum(-1, keepdim=True) - bend
    shift = ((s * v).sum(-1, keepdim=True) - bend * along) / torch.where(mass > 0, mass, 1.0)
    return s * (v - shift) - bend * (along - shift) * y
