"""Distributions over subsets from their marginals, which have a closed form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

ROUNDING = 1e-15
"""The largest weight that may come from the rounding of one addition."""


def decompose(marginals: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution over sets with these marginals: all outcomes of systematic sampling.

    Entry i takes the interval [c_(i−1), c_i), where c are the cumulative sums. For t in [0, 1) the
    set of t has the entries whose interval contains one of t, t + 1, t + 2, …. Its size is the sum
    of the marginals, rounded down or up. It changes only where t passes the fraction of some c_i.

    Args:
        marginals: (B, d) in float64, in [0, 1].
    Returns:
        Indicators (B, K, d) in int64, K ≤ d + 1, and weights (B, K), differentiable, zero behind
        the last set. Time and memory O(d²).
    """
    ends = marginals.cumsum(-1)
    fractions = torch.cat([ends - ends.floor().detach(), torch.ones_like(ends[:, :1])], -1)
    cuts = fractions.sort(-1).values
    starts = pad(cuts[:, :-1], (1, 0))
    weights = cuts - starts
    kept = weights > ROUNDING * ends.shape[-1]
    widest = int(kept.sum(-1).max()) if len(kept) else 0
    order = (~kept).to(torch.uint8).argsort(dim=-1, stable=True)[:, :widest]
    middle = ((cuts + starts) / 2).detach().gather(-1, order).unsqueeze(-1)
    lines = pad(ends.detach(), (1, 0)).unsqueeze(1)
    sets = (lines - middle).ceil().diff(dim=-1).long()
    return sets, torch.where(kept.gather(-1, order), weights.gather(-1, order), 0.0)
