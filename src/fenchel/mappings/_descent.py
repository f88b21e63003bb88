"""Smooth convex functions minimized over the simplex, by accelerated projected gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._sparsemax import sparsemax as project

_HALVINGS = 64
"""How often a step is halved before it is taken: by far more than any smooth function asks for."""


class Status(NamedTuple):
    """How a solve ended: per row, whether it converged, after how many steps, and how close.

    residual is the largest entry of |y − P(y − ∇f(y))|, which is zero at the solution.
    """

    converged: Tensor
    iterations: Tensor
    residual: Tensor


def unwrap(value: Tensor) -> Tensor:
    """A value without what torch.func has wrapped it in: of a vmap, all instances."""
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(value):
        value = functorch.get_unwrapped(value)
    return value


def is_true(condition: Tensor) -> bool:
    """Whether a condition holds everywhere, for all instances of a vmap too."""
    return bool(unwrap(condition).all())


def minimize(
    slope: Callable[[Tensor], Tensor], scores: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Status]:
    """argmin of Ω(y) − <scores, y> over the simplex, each row (..., d) with its own step size.

    Ω, given by its slope, is only asked about points of the simplex. At most `max_iter` steps, of
    at most 64 halvings each.
    """
    eps = torch.finfo(scores.dtype).eps
    longest = torch.finfo(scores.dtype).max ** 0.25
    top = scores.amax(-1, keepdim=True)
    # NaN, nothing but −inf, or +inf: the projection knows the answer.
    proper = top.isfinite()
    x = torch.where(proper, scores - top, 0.0)
    y = z = project(torch.where(x == -torch.inf, x, 0.0))
    done = ~proper.squeeze(-1)
    momentum, step = torch.ones_like(top).squeeze(-1), torch.ones_like(top).squeeze(-1)
    iterations = torch.zeros_like(done, dtype=torch.int64)
    residual = torch.where(done, 0.0, torch.inf).to(scores.dtype)
    for _ in range(max_iter):
        if is_true(done):
            break
        at = slope(z)
        new, there, long = _trial(slope, z, at, x, step)
        for _ in range(_HALVINGS):
            long = long & ~done
            if is_true(~long):
                break
            step = torch.where(long, step / 2, step)
            new, there, long = _trial(slope, z, at, x, step)
        restart = ((z - new) * (new - y)).sum(-1) > 0
        grown = (1 + torch.sqrt(1 + 4 * momentum**2)) / 2
        weight = torch.where(restart, 0.0, (momentum - 1) / grown).unsqueeze(-1)
        momentum = torch.where(restart, 1.0, grown)
        kept = done.unsqueeze(-1)
        ahead = project(new + weight * (new - y))
        y, z = torch.where(kept, y, new), torch.where(kept, z, ahead)
        gap = (new - project(new - (there - x))).abs().amax(-1)
        residual = torch.where(done, residual, gap)
        iterations = iterations + ~done
        rounding = 8 * eps * (1 + torch.where(new.gt(0), there.abs(), 0.0).amax(-1))
        done = done | (residual <= rounding.clamp(min=tol))
        step = torch.where(done, step, (step * 1.05).clamp(max=longest))
    return torch.where(proper, y, project(scores)), Status(done, iterations, residual)


def _trial(
    slope: Callable[[Tensor], Tensor], z: Tensor, at: Tensor, x: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where a step from z with slope `at` leads, the slope there, and whether it is too long."""
    new = project(z - step.unsqueeze(-1) * (at - x))
    there, move = slope(new), new - z
    # Convexity bounds the error of the linear model by <∇Ω(new) − ∇Ω(z), new − z>.
    bend, length = ((there - at) * move).sum(-1), (move * move).sum(-1)
    scale = ((there.abs() + at.abs()) * move.abs()).sum(-1)
    _check_bend(bend, scale, there)
    return new, there, 2 * step * (bend - 4 * torch.finfo(x.dtype).eps * scale) > length


def _check_bend(bend: Tensor, scale: Tensor, slope: Tensor) -> None:
    """Along a move the slope of a convex function rises, up to rounding."""
    if not is_true(bend.isfinite()):
        kind = "NaN" if not is_true(~slope.isnan()) else "inf"
        raise ValueError(
            "`omega` must have a finite slope on the whole simplex, boundary included; "
            f"got {kind}. An entropy has none where an entry is zero: see `Entmax` for those."
        )
    if not is_true(bend >= -(torch.finfo(bend.dtype).eps ** 0.5) * scale):
        raise ValueError(
            "`omega` must be convex, but its slope falls along a line; add a multiple of "
            "(y * y).sum(-1) that is large enough."
        )
