"""What a SparseMAP solver returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Limits(NamedTuple):
    """When a solver ends: at a gap of at most `tol`, or after `max_iter` calls of the oracle."""

    tol: float
    max_iter: int


class Outcome(NamedTuple):
    """How the solver ended, per instance: duality gap, oracle calls, and whether it got there."""

    gap: Tensor
    iterations: Tensor
    converged: Tensor
    missed: int
    """How many did not, on the host; none where a closed form left nothing to miss."""


EXACT_GAP = 1e-12
"""With a gap up to this, marginals are as exact as rounding allows."""


class Face(NamedTuple):
    """The faces of the marginal polytope that hold the solutions of instances solved at once.

    On a face, sums of the marginals over each group of parts are fixed, and links give the
    marginals of extra parts from those of parts; `ops/_cpp/decomposition.hpp` has the details.
    """

    at_once: Tensor
    """(B,), which instances have one"""
    groups: Tensor
    """(B, parts, 3) in int32: two groups of each part, −1 for none, and whether it counts
    negatively"""
    links: Tensor
    """(B, L, 3) in int32, −1 behind the last"""


class Support(NamedTuple):
    """The structures of B solutions, at most K of them each, and what the Jacobian needs.

    By the library, `parts` and `extras` are the indices of their scores and extra scores, in int32,
    −1 for none; by the reference they are indicators, in float64.
    """

    codes: Tensor
    """(B, K, ...), −1 behind the support"""
    parts: Tensor
    """(B, K, positions) or (B, K, parts)"""
    extras: Tensor
    """(B, K, extra parts of one) or (B, K, extras)"""
    factor: Tensor
    """(B, F, F) in float64: the upper U of UᵀU, the Gram matrix plus one; the identity behind the
    support. F is K, unless instances were solved at once, which need none."""
    sizes: Tensor
    """(B,) in int64"""
    has_face: Tensor
    """(B,): whether the structures certainly span the face that holds the exact solution, or
    `face` is it"""
    face: Face | None = None
    """None if no instance was solved at once"""


def extra_marginals(extras: Tensor, weights: Tensor, size: int) -> Tensor:
    """The marginals (B, size) of extra scores, from `Support.extras` and weights (B, K)."""
    if extras.is_floating_point():
        return torch.einsum("bk,bkn->bn", weights, extras)
    indices = torch.where(extras < 0, size, extras).long()
    repeated = weights.unsqueeze(-1).expand_as(indices)
    v = weights.new_zeros(len(weights), size + 1)
    return v.scatter_add(1, indices.flatten(1), repeated.flatten(1))[:, :size]


def inner(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> on the last dimension, in which zeros of a delete infinite entries of b."""
    return torch.where(a == 0, 0.0, a * b).sum(-1)
