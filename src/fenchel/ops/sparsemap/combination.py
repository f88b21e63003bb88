"""A convex combination of structures in plain PyTorch, and the best weights for those it has."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .solution import inner

ZERO = 1e-13
"""A weight that counts as none."""
SINGULAR = 1e-9
"""How close to an affine combination of others a structure counts as one."""


@dataclass
class Combination:
    """A convex combination of affinely independent structures of one instance.

    Args:
        scores: (parts,) and extra_scores (extras,); `regularize` if the latter count in the norm.
        best: the parts and extras of the best structure for these, with which all are compared.
    """

    scores: Tensor
    extra_scores: Tensor
    regularize: bool
    best: tuple[Tensor, Tensor]
    codes: list[Tensor] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    extras: list[Tensor] = field(default_factory=list)
    weights: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def value(self, parts: Tensor, extras: Tensor) -> Tensor:
        """The score of structures less that of the best: what they share cancels."""
        other_parts, other_extras = parts - self.best[0], extras - self.best[1]
        return inner(other_parts, self.scores) + inner(other_extras, self.extra_scores)

    def may_hold(self, parts: Tensor, extras: Tensor) -> bool:
        """Whether a solution may give a structure weight: it is not forbidden, and not further
        below the best than marginals, whose norm is at most that of the best, can lift it."""
        best = self.features(*self.best)
        reach = best.norm() * (self.features(parts, extras) - best).norm()
        return bool(self.value(parts, extras) >= -reach)

    def features(self, parts: Tensor, extras: Tensor) -> Tensor:
        """What of structures (..., n) counts in the norm."""
        return torch.cat([parts, extras], -1) if self.regularize else parts

    @property
    def matrix(self) -> Tensor:
        """The features of all structures here, (k, n)."""
        return self.features(torch.stack(self.parts), torch.stack(self.extras))

    @property
    def values(self) -> Tensor:
        return self.value(torch.stack(self.parts), torch.stack(self.extras))

    @property
    def marginals(self) -> Tensor:
        """Of the features, (n,)."""
        return self.weights @ self.matrix

    @property
    def level(self) -> Tensor:
        """<scores − marginals, marginals>."""
        return self.weights @ self.values - self.marginals @ self.marginals

    def residual(self) -> tuple[Tensor, Tensor]:
        """Scores and extra scores, less the marginals that count."""
        u = self.marginals
        extras = u[len(self.scores) :] if self.regularize else 0.0
        return self.scores - u[: len(self.scores)], self.extra_scores - extras

    def magnitude(self) -> float:
        """The size of the numbers that the best structure's score is added up from, at least 1."""
        parts, extras = (x.abs() for x in self.best)
        sizes = inner(parts, self.scores.abs()) + inner(extras, self.extra_scores.abs())
        return float(1 + parts.sum() + sizes)

    def find(self, parts: Tensor, extras: Tensor) -> int | None:
        """The place of an equal structure."""
        for k in range(len(self.parts)):
            if self.parts[k].equal(parts) and self.extras[k].equal(extras):
                return k
        return None

    def add(self, code: Tensor, parts: Tensor, extras: Tensor, weight: float) -> None:
        """Adds a structure.

        If it is an affine combination of those here, weights move along it until one is zero, and
        that structure goes: marginals stay and the score does not fall.
        """
        while self.parts:
            rows, row = _lifted(self.matrix), _lifted(self.features(parts, extras))
            x = torch.linalg.lstsq(rows.T, row.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
            if (x @ rows - row).norm() > SINGULAR * row.norm():
                break
            sign = 1.0 if self.value(parts, extras) >= x @ self.values else -1.0
            fall = sign * x
            steps = torch.where(fall > ZERO, self.weights / fall.clamp(min=ZERO), torch.inf)
            step, gone = steps.min(0)
            if sign < 0 and weight <= step:
                self.weights = self.weights + weight * x
                return
            weight += sign * float(step)
            self.weights = self.weights - step * fall
            self.keep(torch.arange(len(x)) != gone)
        self.append(code, parts, extras, weight)

    def append(self, code: Tensor, parts: Tensor, extras: Tensor, weight: float) -> None:
        """Adds a structure, independent or not."""
        self.codes.append(code)
        self.parts.append(parts)
        self.extras.append(extras)
        self.weights = torch.cat([self.weights, self.weights.new_tensor([weight])])

    def keep_independent(self) -> None:
        """Leaves independent structures only, at the same marginals."""
        held = zip(self.codes, self.parts, self.extras, self.weights.tolist(), strict=True)
        self.codes, self.parts, self.extras = [], [], []
        self.weights = self.weights[:0]
        for code, parts, extras, weight in held:
            if weight > ZERO:
                self.add(code, parts, extras, weight)

    def keep(self, kept: Tensor) -> None:
        """Drops the structures that are not."""
        places = kept.nonzero().flatten().tolist()
        for values in (self.codes, self.parts, self.extras):
            values[:] = [values[k] for k in places]
        self.weights = self.weights[kept]

    def factor(self) -> Tensor:
        """The lower factor of the Gram matrix plus one, (k, k), up to signs; structures that differ
        little are told apart, as they are not by Cholesky's algorithm."""
        return torch.linalg.qr(_lifted(self.matrix).T, mode="r").R.T

    def optimize(self) -> None:
        """The best weights for the structures here; those that get none go."""
        while True:
            right = torch.stack([self.values, torch.ones_like(self.weights)], -1)
            along, flat = torch.cholesky_solve(right, self.factor()).unbind(-1)
            best = along + (1 - along.sum()) / flat.sum() * flat
            best = best / best.sum()
            if bool((best > ZERO).all()) or len(best) == 1:
                self.weights = best
                return
            blocked = best <= ZERO
            ratio = self.weights / (self.weights - best).clamp(min=ZERO)
            step = torch.where(blocked, ratio, torch.inf).min().clamp(max=1)
            self.weights = self.weights + step * (best - self.weights)
            first = torch.where(blocked, ratio, torch.inf).argmin()
            self.keep((self.weights > ZERO) & (torch.arange(len(best)) != first))


def _lifted(rows: Tensor) -> Tensor:
    """Rows with a one behind each, which turns affine into linear independence."""
    return torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], -1)
