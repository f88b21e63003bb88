"""The divergence of a posterior from a prior p(z) ∝ exp⟨θ, z⟩ over a structure."""

from __future__ import annotations

import torch
from torch import Tensor

from ..structures._base import AbstractStructure
from ..structures._bits import Bits
from ..structures._budget import Budget
from ..structures._checks import check_same_shape, check_structure
from ..structures._choice import Choice
from ..structures._gibbs._scores import center
from ..structures._matching import Matching
from ..structures._problem import Problem
from ..structures._sequence import Sequence
from ..structures._tree import DependencyTree
from ._checks import check_contains

KNOWN = (Choice, Bits, Budget, Sequence, DependencyTree, Matching)
"""The structures of which it is known whether one contains another."""


def divergence(
    problem: Problem,
    marginals: Tensor,
    entropy: Tensor,
    prior: Tensor | None,
    structure: AbstractStructure | None,
) -> Tensor:
    """log Z − ⟨θ, u⟩ − H of each item, (B), in float64, for the log-partition Z of the prior.

    Args:
        problem: the posterior's.
        marginals, entropy: u (B, *shape) and H (B), those of the posterior.
        prior: θ, (B, *shape); None for zeros.
        structure: that of the prior; None for that of the posterior.
    """
    own = problem.structure
    over = own if structure is None else structure
    if over is not own:
        check_structure(over, AbstractStructure)
        check_same_shape("structure", over, own)
        check_contains(over, own, contains(over, own))
    theta = torch.zeros_like(problem.scores) if prior is None else prior
    u = marginals.double()
    theta = center(over, theta.double(), u)
    if prior is None and isinstance(over, Matching):
        log_z = log_num_matchings(over, theta, problem.lengths)
    else:
        log_z = over.log_partition(*over.arguments(theta, None, problem.lengths))
    score = (u * torch.where((u == 0) & theta.isinf(), 0.0, theta)).flatten(1).sum(1)
    excluded = score == -torch.inf  # the prior excludes what the posterior has
    value = log_z - torch.where(excluded, 0.0, score) - entropy.double()
    value = torch.where(excluded, torch.inf, value)
    return value + (value.clamp(min=0.0) - value).nan_to_num().detach()  # at least zero


def log_num_matchings(structure: Matching, scores: Tensor, lengths: Tensor | None) -> Tensor:
    """log n!/(n − m)! for the larger side n and the smaller side m of each item, (B) in float64."""
    sizes = torch.tensor(structure.shape, device=scores.device).expand(len(scores), 2)
    sizes = sizes if lengths is None else lengths
    small, large = sizes.double().sort(1).values.unbind(1)
    return torch.lgamma(large + 1) - torch.lgamma(large - small + 1)


def contains(larger: AbstractStructure, smaller: AbstractStructure) -> bool:
    """Whether every structure of one set, with scores of the same shape, is in another; true if
    one of them is not of the library."""
    if larger == smaller or not (isinstance(larger, KNOWN) and isinstance(smaller, KNOWN)):
        return True
    if isinstance(larger, DependencyTree) and isinstance(smaller, DependencyTree):
        projective = smaller.projective or not larger.projective
        return projective and (smaller.single_root or not larger.single_root)
    sizes, bounds = _sizes(smaller), _sizes(larger)
    if sizes is None or bounds is None:
        return False
    return bounds[0] <= sizes[0] and sizes[1] <= bounds[1]


def _sizes(structure: AbstractStructure) -> tuple[int, int] | None:
    """The smallest and the largest number of entries in a set of entries; None for other
    structures."""
    if isinstance(structure, Choice):
        return 1, 1
    if isinstance(structure, Budget):
        return (structure.k if structure.exact else 0), structure.k
    return (0, structure.d) if isinstance(structure, Bits) else None
