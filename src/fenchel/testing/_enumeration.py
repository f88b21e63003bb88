"""All structures of a small set, by brute force."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from ..structures import AbstractStructure
from ..structures._coded import CodedStructure


def enumerate_codes(structure: AbstractStructure, length: Tensor | None = None) -> Tensor:
    """The codes of all structures: every combination of options that is valid.

    Args:
        structure: a small one of the library's own.
        length: (k,), the size of a shorter instance, for a structure with k `max_lengths`.
    Returns:
        (K, positions) in int64, −1 behind the end.
    Raises:
        TypeError: for a structure without codes, such as a `Custom`.

    >>> from fenchel import Matching
    >>> enumerate_codes(Matching(2, 2))
    tensor([[0, 1],
            [1, 0]])
    """
    coded = _coded(structure)
    dim = coded.options_dim
    options = range(2) if dim is None else range(-1, coded.shape[dim])
    codes = torch.tensor(list(itertools.product(options, repeat=coded.positions)))
    if length is None:
        return codes[coded.is_valid(codes, None)]
    lengths = length.expand(len(codes), -1)
    codes = coded.mask_padding(codes, lengths)
    outside = coded.indicator(codes) * ~coded.length_mask(lengths)
    valid = coded.is_valid(codes, lengths) & (outside == 0).flatten(1).all(1)
    return codes[valid].unique(dim=0)


def enumerate_members(structure: AbstractStructure) -> Tensor:
    """The indicators of all structures, as for `enumerate_codes`.

    Args:
        structure: a small one of the library's own.
    Returns:
        (K, *structure.shape) in float64.
    Raises:
        TypeError: for a structure without codes, such as a `Custom`.

    >>> from fenchel import Budget
    >>> enumerate_members(Budget(3, 2, exact=True))
    tensor([[0., 1., 1.],
            [1., 0., 1.],
            [1., 1., 0.]], dtype=torch.float64)
    """
    return _coded(structure).indicator(enumerate_codes(structure))


def _coded(structure: Any) -> CodedStructure:
    if not isinstance(structure, CodedStructure):
        raise TypeError(
            "`structure` must be one of the library's own, which have codes; for another give its "
            f"`members`; got {structure}."
        )
    return structure
