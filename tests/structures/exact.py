"""Log-partitions and marginals of small structures from sums in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor


def inference(members: Tensor, scores: Tensor) -> tuple[float, Tensor]:
    """The log-partition of scores (n) over members (K, n), and the marginals (n).

    The total of each member is a fraction; only what it lacks to the best becomes a double.
    """
    parts = [None if x == -math.inf else Fraction(x) for x in scores.tolist()]
    totals = [
        None
        if any(count and part is None for count, part in zip(member, parts, strict=True))
        else sum((int(c) * p for c, p in zip(member, parts, strict=True) if c), Fraction(0))  # type: ignore[operator]
        for member in members.tolist()
    ]
    best = max((total for total in totals if total is not None), default=None)
    if best is None:
        return -math.inf, torch.zeros_like(scores)
    shares = torch.tensor(
        [0.0 if t is None else _exp(t - best) for t in totals], dtype=torch.float64
    )
    value = float(best) + math.log(float(shares.sum()))
    return value, shares / shares.sum() @ members.double()


def _exp(x: Fraction) -> float:
    return math.exp(x) if x > -800 else 0.0
