"""Gibbs distributions over the members of a small structure, by enumeration."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from fenchel import Bits, Budget, Choice, DependencyTree, Matching, Sequence, structures
from fenchel.structures import AbstractStructure
from fenchel.structures._coded import CodedStructure
from fenchel.testing import enumerate_codes

TRACTABLE = [
    structure
    for structure in structures.examples()
    if isinstance(structure, Sequence | DependencyTree | Bits | Budget | Choice)
]
RANKED = [*TRACTABLE, *Matching.examples()]
"""Those with an algorithm for the k best."""
FORMS = {
    "shared": lambda n, m: ((m, m), None, None),
    "each pair": lambda n, m: ((n - 1, m, m), None, None),
    "ends": lambda n, m: (None, (m,), (m,)),
    "pairs and start": lambda n, m: ((n - 1, m, m), (m,), None),
    "all": lambda n, m: ((m, m), (m,), (m,)),
}
"""The forms of extra scores: a shape or None for transitions, first and last tag."""


def extra_scores(structure: Sequence, form: str, requires_grad: bool = False) -> tuple:
    """Random ones of a form."""
    return tuple(
        None
        if shape is None
        else torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad)
        for shape in FORMS[form](*structure.shape)
    )


def totals(
    structure: AbstractStructure,
    scores: Tensor,
    extra: tuple | None = None,
    length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All codes (K, positions) of one instance with scores (*shape), and their scores (K)."""
    assert isinstance(structure, CodedStructure)
    codes = _codes(structure, None if length is None else tuple(length.tolist()))
    indices = structure.part_indices(codes)
    values = torch.where(indices < 0, 0.0, scores.flatten()[indices.clamp(min=0)]).sum(1)
    if extra is None:
        return codes, values
    pieces = [_extra_total(code[code >= 0].tolist(), *extra) for code in codes]
    return codes, values + torch.stack(pieces)


@cache
def _codes(structure: AbstractStructure, length: tuple[int, ...] | None) -> Tensor:
    return enumerate_codes(structure, None if length is None else torch.tensor(length))


def _extra_total(
    tags: list[int], transitions: Tensor | None, start: Tensor | None, end: Tensor | None
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    if transitions is not None:
        for i, (a, b) in enumerate(pairwise(tags)):
            total = total + (transitions[a, b] if transitions.ndim == 2 else transitions[i, a, b])
    if start is not None:
        total = total + start[tags[0]]
    return total if end is None else total + end[tags[-1]]


def lengths_of(structure: AbstractStructure) -> list[Tensor]:
    """A few sizes (k,) of instances, up to the largest."""
    highest = torch.tensor(structure.max_lengths)
    sizes = (highest, highest // 2 + 1, torch.ones_like(highest))
    return list({tuple(size.tolist()): torch.minimum(size, highest) for size in sizes}.values())
