"""SparseMAP of structures whose marginals have a closed form."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ops.sparsemap.solution import Outcome
from ._coded import CodedStructure
from ._posterior import Distribution, Solution, find_outside
from ._problem import Problem

ROUNDING = 1e-15
"""The largest weight that may come from the rounding of one addition."""


def project(problem: Problem) -> Solution | None:
    """The closest marginals, if they have a closed form; the distribution is left for later."""
    structure = problem.structure
    if not isinstance(structure, CodedStructure) or not structure.has_projection:
        return None
    u = structure.project(problem.scores.double(), problem.lengths)
    solvable = ~u.detach().sum(-1).isnan()
    gap = torch.where(solvable, 0.0, torch.nan).double()
    outcome = Outcome(gap, torch.zeros_like(solvable, dtype=torch.int64), solvable, missed=0)
    return Solution(u, outcome, partial(_distribution, structure, u))


def _distribution(structure: CodedStructure, u: Tensor) -> Distribution:
    """Structures with these marginals (B, d); none where there are none."""
    if torch.compiler.is_compiling():
        return find_outside(_distribution, structure, u)
    sets, weights = decompose(u)
    codes = structure.codes_of(sets)
    if codes.shape[1]:  # zero marginals of an instance without structures make no valid set
        possible = ~u.isnan().any(-1) & structure.is_valid(codes[:, 0], None)
        weights = torch.where(possible.unsqueeze(-1), weights, 0.0)
    in_support = weights > 0
    codes = codes.masked_fill_(~in_support.unsqueeze(-1), -1)
    return Distribution(weights, codes, None, in_support.sum(-1))


def decompose(marginals: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution over sets with these marginals: all outcomes of systematic sampling.

    Entry i takes the interval [c_(i−1), c_i), where c are the cumulative sums. For t in [0, 1) the
    set of t has the entries whose interval contains one of t, t + 1, t + 2, …. Its size is the sum
    of the marginals, rounded down or up. It changes only where t passes the fraction of some c_i.

    Args:
        marginals: (B, d) in float64, in [0, 1].
    Returns:
        Indicators (B, K, d) in uint8, K ≤ d + 1, and weights (B, K), differentiable, zero behind
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
    counts = (lines - middle).ceil_()  # the largest tensor here by far: no copies
    sets = (counts[..., 1:] > counts[..., :-1]).to(torch.uint8)
    return sets, torch.where(kept.gather(-1, order), weights.gather(-1, order), 0.0)
