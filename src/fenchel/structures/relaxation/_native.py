"""Graphs whose factors are all in the C++ library."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops import _native
from ...ops import factor_graph as ops
from ...ops._structure import sizes
from .. import _factors
from .._bits import Bits
from .._budget import Budget
from .._choice import Choice
from .._coded import CodedStructure
from .._factor_graph import Group
from .._sequence import Sequence
from ._consensus import Consensus, factor_problem

_KINDS = {
    Bits: "bits",
    Budget: "budget",
    Choice: "xor",
    _factors.Xor: "xor",
    _factors.AtMostOne: "at_most_one",
    _factors.Or: "or",
    _factors.Imply: "imply",
    _factors.XorOut: "xor_out",
    _factors.OrOut: "or_out",
    _factors.AndOut: "and_out",
    _factors.Knapsack: "knapsack",
    _factors.Pair: "pair",
}


def _kind(group: Group) -> str | None:
    """The name of its factors in the library; None if they are not there."""
    factor = group.factor
    if type(factor) in _KINDS:
        return _KINDS[type(factor)]
    found = factor.oracle if isinstance(factor, CodedStructure) else None
    return found if found in ops.KINDS else None


def describe(consensus: Consensus) -> ops.Graph | None:
    """The factors as the library takes them; None if some are not there."""
    kinds = [_kind(group) for group in consensus.groups]
    if _native.LIBRARY is None or None in kinds:
        return None
    extra = consensus.extra_scores
    pieces = consensus.extra_pieces(None if extra is None else extra[:1])
    rows, numbers = [], []
    for kind, group, piece in zip(kinds, consensus.groups, pieces, strict=True):
        assert kind is not None
        parts, count, factor = group.index[0].numel(), group.count, group.factor
        if isinstance(factor, Sequence) and piece is None:  # one tag at each position
            kind, count, parts = "xor", count * factor.length, factor.tags
        own_extras = 0 if piece is None else piece.numel() // max(1, len(piece) * group.count)
        built = (parts, 0, 0)
        if isinstance(factor, CodedStructure):
            zeros = torch.zeros(group.count, *factor.shape, dtype=torch.float64)
            merged = factor_problem(group, zeros, piece).extra_scores
            built = (*sizes(zeros), factor.option(merged))
        if isinstance(factor, _factors.Knapsack):
            numbers += [*factor.costs, factor.budget]
        rows.append((ops.KINDS.index(kind), count, parts, own_extras, *built))
    negated = [_negated(group) for group in consensus.groups]
    return ops.Graph(
        torch.tensor(rows, dtype=torch.int64).reshape(-1, 7),
        torch.tensor(numbers, dtype=torch.float64),
        consensus.index.contiguous(),
        torch.cat([torch.zeros(0, dtype=torch.bool), *negated]),
    )


def _negated(group: Group) -> Tensor:
    if group.negated is None:
        return torch.zeros(group.index.numel(), dtype=torch.bool)
    return group.negated.flatten()
