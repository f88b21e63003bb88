"""Exact samples from the Gibbs distribution of a structure."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ... import _checks
from .._base import AbstractStructure
from .._bits import Bits
from .._budget import Budget
from .._checks import check_structure
from .._choice import Choice
from .._coded import CodedStructure
from .._problem import ExtraScores
from .._sequence import Sequence
from .._tree import DependencyTree
from . import _projective_trees, _sequences, _trees, _vectors
from ._scores import center, chunks, select


def sample(
    structure: AbstractStructure,
    scores: Tensor,
    n: int,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Independent samples of p(y) ∝ exp⟨scores, y⟩ over the structures y of each instance.

    Args:
        structure: one of the library's, but no `Matching`.
        scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
        n: how many samples of each instance.
        generator: where random numbers come from, on the device of the scores; torch's own if None.
    Returns:
        Codes (..., n, positions) in int64, as those of `fenchel.map_inference`; −1 for an instance
        without structures, or with NaN or +inf.
    Raises:
        NotImplementedError: for a structure that cannot be sampled.
        TypeError, ValueError: for input of the wrong kind, shape or value.

    >>> from fenchel import Sequence
    >>> generator = torch.Generator().manual_seed(0)
    >>> likely = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> sample(Sequence(2, 2), likely, 3, generator=generator)
    tensor([[0, 1],
            [0, 1],
            [0, 1]])

    The time for each sample is O(nm) for a `Sequence`, O(n²) for trees and O(d) for the others,
    after dynamic programs like those of the log-partition.
    """
    check_structure(structure, AbstractStructure)
    _checks.check_size("n", n)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"`generator` must be a torch.Generator, got {_checks.type_name(generator)}."
        )
    with torch.no_grad():
        problem = structure.problem(scores, extra_scores, lengths, mask)
        arguments = problem.scores, problem.extra_scores, problem.lengths
        value = structure.log_partition(*structure.arguments(*arguments))
        if not isinstance(structure, CodedStructure):
            raise NotImplementedError(_no_sampler(structure))
        u, _ = structure.marginals(*structure.arguments(*arguments))
        arguments = center(structure, problem.scores.double(), u), *arguments[1:]
        codes = torch.full((len(value), n, structure.positions), -1, device=value.device)
        once, each = math.prod(structure.shape) * structure.positions, sum(structure.shape)
        for some in chunks(value.isfinite().nonzero().squeeze(1), once + n * each):
            selected = select(some, *arguments)
            for slots in chunks(torch.arange(n, device=value.device), len(some) * each):
                found = _sample(structure, *selected, len(slots), generator)
                codes[some.unsqueeze(1), slots] = found
    return problem.restore_batch(codes)


def _sample(
    structure: CodedStructure,
    scores: Tensor,
    extra_scores: Tensor | None,
    lengths: Tensor | None,
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Codes (B, n, positions) for instances that have structures, with scores in float64."""
    if isinstance(structure, Sequence) and extra_scores is not None:
        return _sequences.sample(scores, extra_scores.double(), lengths, n, generator)
    if isinstance(structure, DependencyTree):
        family = _projective_trees if structure.projective else _trees
        return family.sample(scores, lengths, structure.single_root, n, generator)
    if isinstance(structure, Choice):
        return _vectors.sample_choice(scores, lengths, n, generator)
    if isinstance(structure, Bits):
        return _vectors.sample_bits(scores, lengths, n, generator)
    if isinstance(structure, Budget):
        return _vectors.sample_budget(scores, lengths, structure.k, structure.exact, n, generator)
    raise NotImplementedError(_no_sampler(structure))


def _no_sampler(structure: AbstractStructure) -> str:
    return (
        f"{structure.name} has no algorithm that samples; use SparseMAP, or the `sample` of "
        "`fenchel.structures.Perturbed`."
    )
