"""What the references share: rows whose largest entry is not finite, and a root in a bracket."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def handle_nonfinite(scores: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """Solves rows whose largest entry is finite, and answers the others as every mapping does.

    `solve` gets scores minus the row's largest, (..., d), finite or −inf, with at least one zero.
    NaN anywhere gives NaN; nothing but −inf gives zeros; +inf entries share the mass.
    """
    top = scores.amax(-1, keepdim=True)  # NaN if any entry is
    infinite = scores == torch.inf
    empty = top == -torch.inf
    shifted = torch.where(infinite, 0.0, scores - torch.where(top.isfinite(), top, 0.0))
    shifted = torch.where((top == torch.inf) & ~infinite, -torch.inf, shifted)
    shifted = torch.where(empty | top.isnan(), 0.0, shifted)
    y = solve(shifted)
    share = infinite.to(y.dtype)
    y = torch.where(top == torch.inf, share / share.sum(-1, keepdim=True).clamp(min=1), y)
    return torch.where(empty, 0.0, torch.where(top.isnan(), torch.nan, y))


def bracketed_root(
    excess: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int = 200
) -> Tensor:
    """The root of a decreasing function in [low, high], to the last bit: secant steps for speed,
    every second one a bisection for certainty."""
    f_low, f_high = excess(low), excess(high)
    for step in range(steps):
        middle = low + (high - low) / 2
        if step % 2:
            slope = f_low - f_high
            secant = low + (high - low) * (f_low / torch.where(slope == 0, 1.0, slope))
            inside = (secant > low) & (secant < high)
            middle = torch.where(inside, secant, middle)
        f = excess(middle)
        right = f > 0
        low, f_low = torch.where(right, middle, low), torch.where(right, f, f_low)
        high, f_high = torch.where(right, high, middle), torch.where(right, f_high, f)
        if bool((high - low <= 2e-16 * (1 + high.abs())).all()):
            break
    return low + (high - low) / 2
