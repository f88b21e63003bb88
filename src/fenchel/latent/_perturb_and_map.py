"""The distribution of the best structures of perturbed scores."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..ops.sparsemap.solution import Limits
from ..structures._base import AbstractStructure
from ..structures._bits import Bits
from ..structures._budget import Budget
from ..structures._checks import check_structure
from ..structures._choice import Choice
from ..structures._perturbed import Perturbed
from ..structures._perturbed._rows import Rows
from ..structures._problem import Problem
from ..structures._sparsemap import solve
from ._checks import check_same_structure
from ._distributions import Drawn, HasRelaxation, Table, straight_through

LIMITS = Limits(1e-6, 10_000)
"""Those of `fenchel.sparsemap`."""


class PerturbAndMap(HasRelaxation):
    """z = argmax over y of ⟨θ + σZ, y⟩ for noise Z; outcomes are the indicators (N, *shape), or the
    categories (N,) of a `Choice`.

    Nothing is known of the probability of z. But the perturbed scores u = θ + σZ have a density,
    and E ℓ(z(u)) has the score function of u. So the points are these. They are given as the noise
    Z, rows (N, D), since u loses its digits where the scores are much larger.

    Args:
        perturbed: the structure and its noise.
        problem: the scores.
    """

    def __init__(self, perturbed: Perturbed, problem: Problem) -> None:
        self.perturbed = perturbed
        self.problem = problem
        self.rows = Rows(problem)

    @property
    def mass(self) -> Tensor:
        rows, theta = self.rows, self.rows.theta.detach()
        solvable = ((theta < torch.inf) | ~rows.is_used).all(1)
        total = solvable.double()
        if isinstance(self.problem.structure, Choice):
            total = rows.is_used.any(1).double()
        return torch.where(solvable, total, torch.nan)

    @cached_property
    def marginals(self) -> Tensor:  # type: ignore[override]
        return self.perturbed.mean(self.problem)[0].to(self.problem.scores.dtype)

    @property
    def entropy(self) -> Tensor:
        raise NotImplementedError(
            "the entropy of perturb-and-MAP is intractable; use `kl`, a bound, or SparseMAP: give "
            "the structure itself as the `estimator`."
        )

    def kl(self, prior: Tensor | None, structure: AbstractStructure | None) -> Tensor:
        if structure is not None:
            check_structure(structure, AbstractStructure)
            check_same_structure(structure, self.problem.structure)
        rows, theta = self.rows, self.rows.theta
        other = torch.zeros_like(theta)
        if prior is not None:
            flat = prior.flatten(1)
            other = pad(flat, (0, theta.shape[1] - flat.shape[1])).to(theta)  # no extra scores
        in_both = rows.is_used & (other > -torch.inf)
        shift = torch.where(in_both, theta - other, 0.0) / self.perturbed.sigma
        in_one = rows.is_inside & ((theta > -torch.inf) != (other > -torch.inf))
        in_one = in_one & self._has_outcomes().unsqueeze(1)
        return torch.where(in_one, torch.inf, self.perturbed.density.kl(shift)).sum(1)

    def _has_outcomes(self) -> Tensor:
        """Whether an item has any part, (B), or needs none."""
        structure = self.problem.structure
        needs_none = isinstance(structure, Bits) or (
            isinstance(structure, Budget) and not (structure.exact and structure.k)
        )
        return self.rows.is_used.any(1) | needs_none

    def sample(self, samples: int) -> Drawn:
        pairs = [
            (self._outcomes(best.y.flatten(0, 1)), noise.flatten(0, 1))
            for noise, best in self.perturbed.solve(self.rows, samples)
        ]
        z, points = (torch.cat(column) for column in zip(*pairs, strict=True))
        return Drawn(z, points)

    def log_prob(self, item: Tensor, point: Tensor) -> Tensor:
        theta, used = self.rows.theta[item], self.rows.is_used[item]
        shift = torch.where(used, theta - theta.detach(), 0.0) / self.perturbed.sigma  # zero
        density = self.perturbed.density.log_density(point - shift)
        return torch.where(used, density, 0.0).sum(1).to(self.problem.scores.dtype)

    def mode(self) -> Tensor:
        return self._outcomes(self.rows.solve(self.rows.theta.unsqueeze(0)).y[0])

    def indicator(self, z: Tensor) -> Tensor:
        if not isinstance(self.problem.structure, Choice):
            return z
        return one_hot(z, self.problem.structure.d).to(self.problem.scores.dtype)

    def relaxed_sample(self, samples: int, temperature: float, hard: bool) -> Tensor:
        noise = self.perturbed.perturb(self.rows, samples)
        points = self.rows.theta + self.perturbed.sigma * noise
        soft = relax(self.rows.at(points.flatten(0, 1) / temperature))
        soft = soft.to(self.problem.scores.dtype)
        if not hard:
            return soft
        return straight_through(soft, self._parts(self.rows.solve(points.detach()).y.flatten(0, 1)))

    def table(self, samples: int) -> Table:
        """The distribution of so many samples."""
        z = self.sample(samples).z
        batch = len(self.problem.scores)
        item = torch.arange(batch, device=z.device).repeat(samples)
        parts = z.reshape(len(item), math.prod(z.shape[1:])).double()
        pairs = torch.cat([item.unsqueeze(1), parts], 1)
        rows, counts = pairs.unique(dim=0, return_counts=True)
        item, outcomes = rows[:, 0].long(), rows[:, 1:].reshape(-1, *z.shape[1:]).to(z.dtype)
        sizes = torch.bincount(item, minlength=batch)
        start = sizes.cumsum(0) - sizes
        weights = self.problem.scores.new_zeros(batch, int(sizes.max()) if batch else 0)
        slot = torch.arange(len(item), device=z.device) - start[item]
        weights[item, slot] = (counts / samples).to(weights.dtype)
        return Table(
            self.problem,
            weights,
            lambda item, slot: outcomes[start[item] + slot],
            lambda: self.marginals,
            torch.zeros_like(sizes, dtype=torch.bool),
        )

    def _outcomes(self, rows: Tensor) -> Tensor:
        """Rows (N, D) as outcomes."""
        parts = self._parts(rows)
        return parts.argmax(-1) if isinstance(self.problem.structure, Choice) else parts

    def _parts(self, rows: Tensor) -> Tensor:
        """Rows (N, D) as indicators (N, *shape), in the scores' type."""
        return self.rows.split(rows)[0].to(self.problem.scores.dtype)


def relax(problem: Problem) -> Tensor:
    """Marginals (B, *shape), or those of SparseMAP where they are intractable; differentiable."""
    structure = problem.structure
    arguments = structure.arguments(problem.scores, problem.extra_scores, problem.lengths)
    try:
        return structure.marginals(*arguments)[0]
    except NotImplementedError:
        return solve(problem, "active_set", LIMITS, False).marginals
