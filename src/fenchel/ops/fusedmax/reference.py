"""fusedmax in plain PyTorch: total-variation prox by level sets, then the projection."""

import torch
from torch import Tensor

from ..entmax.reference import entmax


def segment_mean(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each entry's segment, and the mean of x over it."""
    segment = starts.cumsum(-1) - 1
    total = torch.zeros_like(x).scatter_add(-1, segment, x)
    count = torch.zeros_like(x).scatter_add(-1, segment, torch.ones_like(x))
    return segment, (total / count.clamp(min=1)).gather(-1, segment)


def clamped_sums(a: Tensor, starts: Tensor, lam: float) -> Tensor:
    """m_i = clamp(m_{i−1}, −λ, λ) + a_i, and m_i = a_i at the start of a segment.

    A step p ↦ clamp(p + shift, low, high) composed with another is a step again, so ⌈log₂ d⌉
    doublings reach every prefix. A start forgets what came before: low = high.
    """
    shift, low = a, torch.where(starts, a.clamp(-lam, lam), -lam)
    high = torch.where(starts, low, lam)
    reach = 1
    while reach < a.shape[-1]:
        down, up, move = low[..., reach:], high[..., reach:], shift[..., reach:]
        from_low = (low[..., :-reach] + move).clamp(down, up)
        from_high = (high[..., :-reach] + move).clamp(down, up)
        moved = shift[..., :-reach] + move
        low = torch.cat([low[..., :reach], from_low], -1)
        high = torch.cat([high[..., :reach], from_high], -1)
        shift = torch.cat([shift[..., :reach], moved], -1)
        reach *= 2
    return torch.where(starts, 0.0, low.roll(1, -1)) + a


def prox_tv(x: Tensor, lam: float, starts: Tensor | None = None) -> Tensor:
    """Denoise every row: argmin over z of ½|z − x|² + λ Σ |z_{i+1} − z_i|.

    A segment is cut where its solution crosses its own mean t: {z > t} is the set E of the largest
    Σ_E (x_i − t) − λ (borders of E). At a cut |z_{i+1} − z_i| becomes linear, ± λ on either side,
    and the segments stand alone. A segment that is not cut is constant, at its mean.

    Args:
        x: (..., d), finite.
        lam: λ ≥ 0.
        starts: (..., d), true where a chain starts, as at the first entry; one chain by default.

    Returns:
        (..., d), bitwise equal within a group. O(d log d) a round; about log d rounds, at most d.
    """
    place = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    starts = place == 0 if starts is None else starts
    while True:
        mean = segment_mean(x, starts)[1]
        gain = clamped_sums(x - mean, starts, lam)
        ends = torch.ones_like(starts)
        ends[..., :-1] = starts[..., 1:]
        # In between, an entry does as the one after it does; the last of a segment must decide.
        inside = torch.where(ends, gain > 0, gain > lam)
        decided = ends | inside | (gain <= -lam)
        who = torch.where(decided, place, x.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        inside = inside.gather(-1, who).to(x.dtype)
        fall = torch.where(starts[..., 1:], 0.0, inside[..., :-1] - inside[..., 1:])
        if not fall.any():
            return mean
        x, starts = x.clone(), starts.clone()
        x[..., :-1] -= lam * fall
        x[..., 1:] += lam * fall
        starts[..., 1:] |= fall != 0


def fusedmax(scores: Tensor, lam: float) -> Tensor:
    """argmin over y in the simplex of ½|y − scores|² + λ Σ |y_{i+1} − y_i|.

    Args:
        scores: (..., d); −inf entries are deleted and the chain closes up over them.
        lam: λ ≥ 0.

    Returns:
        (..., d). The cost of `prox_tv`.
    """
    kept = scores.isfinite()
    order = (~kept).to(torch.uint8).argsort(dim=-1, stable=True)
    chain = torch.where(kept, scores, 0.0).gather(-1, order)
    place = torch.arange(scores.shape[-1], device=scores.device)
    starts = (place == 0) | (place == kept.sum(-1, keepdim=True))
    z = torch.empty_like(chain).scatter(-1, order, prox_tv(chain, lam, starts))
    return entmax(torch.where(kept, z, scores), 2.0)


def group_jvp(group: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """(Mean of v over the entry's group) − (mean of v over y > 0) where y > 0, else 0.

    Args:
        group: (..., d), numbers from 0 to d − 1; where y = 0 any of them.
        y: (..., d), nonnegative.
        v: (..., d).

    Returns:
        (..., d), differentiable in v. O(d) a row.
    """
    support = y > 0
    one, v = support.to(v.dtype), torch.where(support, v, 0.0)
    total = torch.zeros_like(v).scatter_add(-1, group, v)
    count = torch.zeros_like(v).scatter_add(-1, group, one)
    mean = (total / count.clamp(min=1)).gather(-1, group)
    centre = v.sum(-1, keepdim=True) / one.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(support, mean - centre, 0 * y)  # a row of NaN has that derivative


def fusedmax_jvp(y: Tensor, v: Tensor) -> Tensor:
    """The Jacobian of fusedmax at its value y, times v: group means of v, centred on the support.

    A group is a run of equal nonzero y. Zeros do not end it, since they may be deleted entries.

    Args:
        y: (..., d).
        v: (..., d).

    Returns:
        (..., d), differentiable in v. O(d) a row.
    """
    support = y > 0
    place = torch.arange(y.shape[-1], device=y.device)
    latest = torch.where(support, place, -1).cummax(-1).values
    before = torch.cat([torch.full_like(latest[..., :1], -1), latest[..., :-1]], -1)
    changes = support & ((before < 0) | (y != y.gather(-1, before.clamp(min=0))))
    return group_jvp((changes.cumsum(-1) - 1).clamp(min=0), y, v)
