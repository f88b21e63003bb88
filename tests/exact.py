"""Sums over the members of small structures in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import torch
from torch import Tensor

import fenchel
from fenchel import testing
from fenchel.structures import AbstractStructure
from fenchel.structures._coded import CodedStructure
from fenchel.structures._custom import EXAMPLE

Total = Fraction | None
"""The score of a structure, None if it is forbidden."""


UNIT = 2**1074
"""Any double is a multiple of one over this."""


def totals(members: Tensor, scores: Tensor) -> list[Total]:
    """The scores (K) of members (K, n) for the scores (n) of their parts."""
    forbidden_parts = scores == -math.inf
    units = [int(Fraction(x) * UNIT) for x in torch.where(forbidden_parts, 0.0, scores).tolist()]
    sums = members.long().numpy().astype(object) @ np.array(units, dtype=object)
    forbidden = ((members != 0) & forbidden_parts).any(1).tolist()
    return [
        None if is_forbidden else Fraction(x, UNIT)
        for x, is_forbidden in zip(sums, forbidden, strict=True)
    ]


@cache
def members(structure: AbstractStructure) -> Tensor:
    """All of them, (K, *shape)."""
    if structure.name == "custom":
        return torch.tensor(EXAMPLE, dtype=torch.float64)
    return testing.enumerate_members(structure)


@cache
def codes(structure: AbstractStructure) -> Tensor:
    """Their codes (K, positions), or the flat members if structures have no codes."""
    if isinstance(structure, CodedStructure):
        return testing.enumerate_codes(structure)
    return members(structure).flatten(1)


def best(values: Sequence[Total]) -> Total:
    return max((value for value in values if value is not None), default=None)


def inference(members: Tensor, scores: Tensor) -> tuple[float, Tensor]:
    """The log-partition of scores (n) over members (K, n), and the marginals (n).

    The total of each member is a fraction; only its difference from the best becomes a double.
    """
    values = totals(members, scores)
    top = best(values)
    if top is None:
        return -math.inf, torch.zeros_like(scores)
    shares = torch.tensor(
        [0.0 if t is None else _exp(t - top) for t in values], dtype=torch.float64
    )
    value = float(top) + math.log(float(shares.sum()))
    return value, shares / shares.sum() @ members.double()


def _exp(x: Fraction) -> float:
    return math.exp(x) if x > -800 else 0.0


def with_extra(
    structure: AbstractStructure, scores: Tensor, extra_scores: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor]:
    """The members (K, n) of a structure with the parts of its extra scores, and all scores (n)
    of one instance."""
    rows, every = [members(structure).flatten(1)], [scores.flatten().double()]
    for k, piece in enumerate(extra_scores):
        if piece is None:
            continue
        assert isinstance(structure, fenchel.Sequence)
        if k == 0:
            parts = structure.extra_indicator(codes(structure), piece.unsqueeze(0))
            assert parts is not None
        else:
            parts = members(structure)[:, 0 if k == 1 else -1]
        rows.append(parts.flatten(1).double())
        every.append(piece.flatten().double())
    return torch.cat(rows, 1), torch.cat(every)


def index_of(structure: AbstractStructure, code: Tensor) -> int:
    """The index of the member with that code, or indicator if structures have no codes."""
    every = codes(structure)
    (found,) = (every == code.flatten().to(every)).all(1).nonzero().flatten().tolist()
    return found


def gap(structure: AbstractStructure, values: Sequence[Total], found: fenchel.Posterior) -> float:
    """The duality gap of a posterior of one instance, whose members have these scores."""
    overlaps = totals(members(structure).flatten(1), found.marginals.flatten().double())
    slopes = [
        None if value is None or overlap is None else value - overlap
        for value, overlap in zip(values, overlaps, strict=True)
    ]
    level = mass = Fraction(0)
    for code, weight in zip(found.codes, found.weights.tolist(), strict=True):
        if weight == 0:
            continue
        slope = slopes[index_of(structure, code)]
        assert slope is not None, "a structure that is forbidden"
        level, mass = level + Fraction(weight) * slope, mass + Fraction(weight)
    top = best(slopes)
    assert top is not None
    return float(top - level / mass)
