"""Structures with given marginals, by systematic sampling.

Positions or entries take intervals as long as their marginals, and a number t in [0, 1) gives the
structure of the intervals that contain it. It changes only where t passes the end of one, so that
few structures have all the weight; and weights are continuous in the marginals.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

ROUNDING = 1e-15
"""The largest weight that may come from the rounding of one addition."""


def decompose_sets(marginals: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution over sets with these marginals.

    Entry i takes the interval [c_(i−1), c_i), where c are the cumulative sums. For t in [0, 1) the
    set of t has the entries whose interval contains one of t, t + 1, t + 2, …. Its size is the sum
    of the marginals, rounded down or up.

    Args:
        marginals: (B, d) in float64, in [0, 1].
    Returns:
        Indicators (B, K, d) in uint8, K ≤ d + 1, and weights (B, K), differentiable, zero behind
        the last set. Time and memory O(d²).
    """
    ends = marginals.cumsum(-1)
    middles, weights = _split(ends - ends.floor().detach(), torch.ones_like(ends[:, :1]))
    lines = pad(ends.detach(), (1, 0)).unsqueeze(1)
    counts = (lines - middles.unsqueeze(-1)).ceil_()  # the largest tensor here by far: no copies
    return (counts[..., 1:] > counts[..., :-1]).to(torch.uint8), weights


def decompose_sequences(marginals: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution over sequences whose tags have these marginals.

    The tags of each position take intervals side by side, which fill [0, 1).

    Args:
        marginals: (B, n, m) in float64, of tags; zero behind the end of an instance, and
            everywhere where it has no sequence.
    Returns:
        Tags (B, K, n), −1 behind the end, K ≤ n (m − 1) + 1, and weights (B, K), differentiable,
        zero behind the last sequence. Time and memory O(n² m).
    """
    ends = marginals.cumsum(-1)
    total = ends[:, 0, -1:]
    inner = torch.where(ends < total.detach().unsqueeze(-1), ends, 0.0)  # the last tags end at one
    middles, weights = _split(inner.flatten(1), total)
    everywhere = middles.unsqueeze(1).expand(-1, marginals.shape[1], -1).contiguous()
    tags = torch.searchsorted(ends.detach(), everywhere, right=True)
    present = ends[..., -1:] > 0
    last = (marginals > 0).long().mul(torch.arange(marginals.shape[2], device=ends.device)).amax(-1)
    tags = torch.where(present, tags.minimum(last.unsqueeze(-1)), -1)
    return tags.mT, weights


def _split(ends: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The middles and the lengths (B, K) of the pieces into which ends (B, d) cut [0, total), those
    without length left out; lengths are differentiable, and zero behind the last piece."""
    cuts = torch.cat([ends, total], -1).sort(-1).values
    starts = pad(cuts[:, :-1], (1, 0))
    weights = cuts - starts
    kept = weights > ROUNDING * ends.shape[-1]
    widest = int(kept.sum(-1).max()) if len(kept) else 0
    order = (~kept).to(torch.uint8).argsort(dim=-1, stable=True)[:, :widest]
    middles = ((cuts + starts) / 2).detach().gather(-1, order)
    return middles, torch.where(kept.gather(-1, order), weights.gather(-1, order), 0.0)
