"""oscarmax in plain PyTorch: sort, isotonic regression by level sets, then the projection."""

import torch
from torch import Tensor

from ..entmax.reference import entmax
from ..fusedmax.reference import group_jvp, segment_mean


def isotonic(x: Tensor, starts: Tensor | None = None) -> Tensor:
    """Non-increasing regression of every row: argmin over z_1 ≥ … ≥ z_d of ½|z − x|².

    A segment is cut where its solution crosses its own mean t: {z > t} is the prefix of the largest
    Σ (x_i − t). A segment that is not cut is constant, at its mean.

    Args:
        x: (..., d), finite.
        starts: (..., d), true where a regression starts, as at the first entry; one by default.

    Returns:
        (..., d), bitwise equal within a block. O(d) a round; about log d rounds, at most d.
    """
    place = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    starts = place == 0 if starts is None else starts
    while True:
        segment, mean = segment_mean(x, starts)
        gain = (x - mean).cumsum(-1)
        start = torch.where(starts, place, 0).cummax(-1).values
        gain = gain - (gain - (x - mean)).gather(-1, start)
        best = torch.zeros_like(gain).scatter_reduce(-1, segment, gain, "amax").gather(-1, segment)
        cuts = (gain == best) & (best > 0)
        new = cuts[..., :-1] & ~starts[..., 1:]
        if not new.any():
            return mean
        starts = starts.clone()
        starts[..., 1:] |= new


def oscarmax(scores: Tensor, lam: float) -> Tensor:
    """argmin over y in the simplex of ½|y − scores|² + λ Σ_{i<j} max(y_i, y_j).

    In decreasing order the i-th of n entries is the larger of n − i pairs, so the penalty is linear
    there, and y is the projection of the regression of scores − λ (n − i).

    Args:
        scores: (..., d); −inf entries are deleted, and n counts the others.
        lam: λ ≥ 0.

    Returns:
        (..., d), bitwise equal within a group. The cost of sorting and of `isotonic`.
    """
    kept = scores.isfinite()
    ordered, order = torch.where(kept, scores, -torch.inf).sort(-1, descending=True)
    n = kept.sum(-1, keepdim=True)
    place = torch.arange(scores.shape[-1], device=scores.device)
    pairs = (n - 1 - place).to(scores.dtype)
    lowered = torch.where(pairs >= 0, ordered - lam * pairs, 0.0)
    z = isotonic(lowered, (place == 0) | (place == n))
    z = torch.empty_like(z).scatter(-1, order, z)
    return entmax(torch.where(kept, z, scores), 2.0)


def oscarmax_jvp(y: Tensor, v: Tensor) -> Tensor:
    """The Jacobian of oscarmax at its value y, times v: group means of v, centred on the support.

    A group is all entries of one nonzero value.

    Args:
        y: (..., d).
        v: (..., d).

    Returns:
        (..., d), differentiable in v. O(d log d) a row, by sorting.
    """
    ordered, order = y.sort(-1)
    changes = torch.zeros_like(order)
    changes[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    group = torch.zeros_like(order).scatter(-1, order, changes.cumsum(-1))
    return group_jvp(group, y, v)
