"""SparseMAP of structures whose marginals have a closed form."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..ops.sparsemap.solution import Outcome
from ._coded import CodedStructure
from ._posterior import Distribution, Solution, find_outside
from ._problem import Problem


def project(problem: Problem) -> Solution | None:
    """The closest marginals, if they have a closed form; the distribution is left for later."""
    structure = problem.structure
    if not isinstance(structure, CodedStructure) or not structure.has_projection:
        return None
    if problem.form is not None:  # it has extra scores
        return None
    u = structure.project(problem.scores.double(), problem.lengths)
    solvable = ~u.detach().flatten(1).sum(-1).isnan()
    gap = torch.where(solvable, 0.0, torch.nan).double()
    outcome = Outcome(gap, torch.zeros_like(solvable, dtype=torch.int64), solvable, missed=0)
    return Solution(u, outcome, partial(_distribution, structure, u))


def _distribution(structure: CodedStructure, u: Tensor) -> Distribution:
    """Structures with these marginals (B, *shape); none where there are none."""
    if torch.compiler.is_compiling():
        return find_outside(_distribution, structure, u)
    codes, weights = structure.decompose(u)
    in_support = weights > 0
    codes = codes.masked_fill(~in_support.unsqueeze(-1), -1)
    return Distribution(weights, codes, None, in_support.sum(-1))
