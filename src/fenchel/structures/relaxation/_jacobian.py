"""The derivative of a solution of a factor graph."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ...ops import factor_graph as ops
from ._admm import Outcome
from ._consensus import Consensus
from ._native import describe

RADII = 1e-5 * 4.0 ** -torch.arange(8, dtype=torch.float64)
"""How far around the scores of its last subproblem a factor's projection is examined, at first and
after each move of these scores."""
STRAIGHT = 1e-4
"""The share of a radius by which a linear projection may seem to bend, because of rounding."""


class Jacobian:
    """The derivative of a solution in its scores.

    Near the solution each factor's marginals stay in the affine span of its structures, and the
    factor's Jacobian J_f projects onto that span. So the marginals of the graph move in the space
    where (I − J_f) C_f du = 0 for all factors, and du is the projection of dθ onto it. With E_f,
    the derivative of p_f in its extra scores, du is the projection of dθ + Σ C_fᵀ E_f dφ_f, and
    dv_f = E_fᵀ C_f du.

    That span is the smallest face with the factor's marginals p. The formula of J_f finds a larger
    one where the subproblem's scores s fulfil a constraint with a multiplier of zero, as where they
    tie. So p is computed at s, s + r and s − r for a small r. If p(s) is the mean of the others, p
    is linear between them, and J_f is taken at s + r, where nothing ties. If not, s moves to
    s + p(s) − (p(s + r) + p(s − r))/2. The mean of s ± r less their marginals is this less p(s); it
    is orthogonal to the smallest face, so that the marginals stay, and has positive multipliers for
    more of its constraints.
    """

    def __init__(self, consensus: Consensus, outcome: Outcome) -> None:
        self._consensus, self._shifted, self._graph = (
            consensus,
            outcome.shifted,
            describe(consensus),
        )
        extra = consensus.extra_scores
        self._extra = None if extra is None else extra / outcome.state.step

    def multiply(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The product with vectors (B, n) and (B, m), by the library where it can."""
        if self._graph is not None:
            probe = ops.Probe(_directions(self._shifted.shape[1]), RADII, STRAIGHT)
            extra = u.new_zeros(len(u), 0) if self._extra is None else self._extra
            scores = self._consensus.scores
            found = ops.product(self._graph, probe, scores, self._shifted, extra, u, v)
            if found is not None:
                return found
        return self._by_autograd.multiply(u, v)

    @cached_property
    def _by_autograd(self) -> _AutogradJacobian:
        return _AutogradJacobian(self._consensus, self._shifted, self._extra)


class _AutogradJacobian:
    """The same for any factors, by the derivatives that autograd finds.

    Args:
        consensus: the graph and its scores.
        shifted, extra: (B, E) and (B, m), the scores of the factors' last subproblems.
    """

    def __init__(self, consensus: Consensus, shifted: Tensor, extra: Tensor | None) -> None:
        self.consensus = consensus
        shifted = self._settle(shifted, extra)
        with torch.enable_grad():
            self._shifted = shifted.requires_grad_()
            self._extra = None if extra is None else extra.detach().requires_grad_()
            self._copies, self._extras = consensus.project(self._shifted, self._extra)
        theta = consensus.scores
        free = (consensus.degree == 0) & (theta > 0) & (theta < 1)
        self._fixed = (consensus.degree == 0) & ~free

    def _settle(self, shifted: Tensor, extra: Tensor | None) -> Tensor:
        """The scores near `shifted` where derivatives are taken; `Jacobian` explains them."""
        moved, directions = shifted, _directions(shifted.shape[1])
        for radius in RADII:
            offset = radius * directions
            moved = shifted + offset
            here, ahead, behind = (
                self.consensus.project(x, extra, warm=True)[0]
                for x in (shifted, moved, shifted - offset)
            )
            bend = here - (ahead + behind) / 2
            if not (bend.abs() > STRAIGHT * radius).any():
                break
            shifted = shifted + bend
        return moved

    def multiply(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self._extras is not None:
            u = u + self.consensus.add(self._gradient(self._extras, self._shifted, v))
        du = u - self._complement(u)
        if self._extra is None:
            return du, torch.zeros_like(v)
        return du, self._gradient(self._copies, self._extra, self.consensus.copy(du))

    def _gradient(self, outputs: Tensor, inputs: Tensor, vectors: Tensor) -> Tensor:
        if not outputs.requires_grad:
            return torch.zeros_like(inputs)
        (found,) = torch.autograd.grad(
            outputs, inputs, vectors, retain_graph=True, materialize_grads=True
        )
        return found

    def _normal(self, u: Tensor) -> Tensor:
        """Σ_f C_fᵀ (I − J_f) C_f u; its null space is where the marginals move."""
        seen = self.consensus.copy(u)
        moved = self._gradient(self._copies, self._shifted, seen)
        return self.consensus.add(seen - moved) + torch.where(self._fixed, u, 0.0)

    def _complement(self, u: Tensor) -> Tensor:
        """The projection of vectors (B, n) on the range of `_normal`, by conjugate gradient."""
        residual = self._normal(u)
        solution, direction = torch.zeros_like(u), residual
        square = (residual**2).sum(1, keepdim=True)
        goal = 1e-26 * (u**2).sum(1, keepdim=True)
        for _ in range(2 * u.shape[1] + 20):
            active = square > goal
            if not active.any():
                break
            image = self._normal(direction)
            curve = (direction * image).sum(1, keepdim=True)
            length = torch.where(active & (curve > 0), square / curve, 0.0)
            solution = solution + length * direction
            residual = residual - length * image
            previous, square = square, (residual**2).sum(1, keepdim=True)
            ratio = torch.where(active, square / previous, 0.0)
            direction = residual + ratio * direction
        return solution


def _directions(count: int) -> Tensor:
    """Fixed numbers (E,) without a pattern, around one."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
