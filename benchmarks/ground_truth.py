"""Exact answers in float64, against which everything is checked before it is timed.

Bisections on the threshold τ for the separable mappings; `programs.py` has the others. Nothing here
is shared with the package.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GroundTruth = Callable[[Tensor], Tensor]
"""Rows (n, d) of float64 to solutions of that shape."""


def _bisect(excess: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The root of a decreasing function of τ (n, 1), to the last bit."""
    for _ in range(100):
        middle = (low + high) / 2
        if bool(((middle == low) | (middle == high)).all()):
            break
        above = excess(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def entmax(alpha: float) -> GroundTruth:
    """y = [(α−1)x − τ]₊^(1/(α−1)), and softmax at α = 1."""
    power = 1 / (alpha - 1) if alpha != 1 else 0.0

    def solve(x: Tensor) -> Tensor:
        x = x - x.amax(-1, keepdim=True)
        if alpha == 1:
            return x.softmax(-1)
        x = x * (alpha - 1)

        def y(tau: Tensor) -> Tensor:
            return (x - tau).clamp(min=0) ** power

        zero = torch.zeros_like(x[:, :1])
        tau = _bisect(lambda tau: y(tau).sum(-1, keepdim=True) - 1, zero - 1, zero)
        return y(tau)

    return solve


def entmax_jvp(alpha: float, y: Tensor, v: Tensor) -> Tensor:
    """The Jacobian of α-entmax where it is y, times v: (diag(s) − s sᵀ/Σs) v, s = y^(2−α)."""
    s = torch.where(y > 0, y ** (2 - alpha), 0.0)
    return s * (v - (s * v).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))


def tsallis(alpha: float) -> Callable[[Tensor], Tensor]:
    """−Ω of α-entmax, by rows."""
    return lambda y: (1 - (y**alpha).sum(-1)) / (alpha * (alpha - 1))


def normmax(alpha: float) -> GroundTruth:
    """y ∝ u^(1/(α−1)), u = [x − τ]₊, with Σ u^(α/(α−1)) = 1."""

    def solve(x: Tensor) -> Tensor:
        x = x - x.amax(-1, keepdim=True)

        def y(tau: Tensor) -> Tensor:
            return (x - tau).clamp(min=0) ** (1 / (alpha - 1))

        zero = torch.zeros_like(x[:, :1])
        tau = _bisect(lambda tau: (y(tau) ** alpha).sum(-1, keepdim=True) - 1, zero - 1, zero)
        return y(tau) / y(tau).sum(-1, keepdim=True)

    return solve


def pnormmax(p: float) -> GroundTruth:
    """y ∝ u^(q−1), u = [x − τ]₊, q = p/(p−1), with Σ u^(q−1) = (Σ u^q)^((2−p)/p)."""
    q = p / (p - 1)

    def solve(x: Tensor) -> Tensor:
        x = x - x.amax(-1, keepdim=True)

        def u(tau: Tensor) -> Tensor:
            return (x - tau).clamp(min=0)

        def excess(tau: Tensor) -> Tensor:
            norm = (u(tau) ** q).sum(-1, keepdim=True)
            return (u(tau) ** (q - 1)).sum(-1, keepdim=True) - norm ** ((2 - p) / p)

        zero = torch.zeros_like(x[:, :1])
        y = u(_bisect(excess, zero - 1, zero)) ** (q - 1)
        return y / y.sum(-1, keepdim=True)

    return solve


def ksubset(k: float) -> GroundTruth:
    """y = min(1, [x − τ]₊) with Σy = k."""

    def solve(x: Tensor) -> Tensor:
        def y(tau: Tensor) -> Tensor:
            return (x - tau).clamp(0, 1)

        low, high = x.amin(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
        return y(_bisect(lambda tau: y(tau).sum(-1, keepdim=True) - k, low, high))

    return solve


def fusedmax(lam: float, steps: int = 5000) -> GroundTruth:
    """Sparsemax of argmin_z ½‖x − z‖² + λ Σ |z_(i+1) − z_i|.

    z = x − Dᵀu, where u minimizes ½‖x − Dᵀu‖² with |u| ≤ λ, by accelerated projected gradients that
    restart where they overshoot.
    """
    sparsemax = entmax(2.0)

    def solve(x: Tensor) -> Tensor:
        def z(u: Tensor) -> Tensor:
            return x - (torch.nn.functional.pad(u, (1, 0)) - torch.nn.functional.pad(u, (0, 1)))

        u = ahead = torch.zeros_like(x[:, 1:])
        momentum = torch.ones_like(x[:, :1])
        for _ in range(steps):
            following = (ahead + z(ahead).diff() / 4).clamp(-lam, lam)
            overshot = ((ahead - following) * (following - u)).sum(-1, keepdim=True) > 0
            grown = torch.where(overshot, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
            weight = torch.where(overshot, 0.0, (momentum - 1) / grown)
            ahead, u, momentum = following + weight * (following - u), following, grown
        return sparsemax(z(u))

    return solve
