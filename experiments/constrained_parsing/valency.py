"""How many children a word may have, by its tag, and the graph of trees that keep to it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fenchel import Budget, DependencyTree, FactorGraph

from ..dependency_parsing.conllu import Sentence
from ..dependency_parsing.model import ROOT, Encoder

NO_LIMIT = 10**6


def limits_of(sentences: Sequence[Sentence], encode: Encoder, share: float) -> Tensor:
    """The limit of each tag's number (…): a share of its words has no more children."""
    counts: dict[str, list[int]] = defaultdict(list)
    for sentence in sentences:
        for tag, count in zip(sentence.tags, children(torch.tensor(sentence.code)), strict=True):
            counts[tag].append(int(count))
    limits = torch.full((ROOT + 1 + len(encode.tags),), NO_LIMIT)
    for tag, found in counts.items():
        limits[encode.tags[tag]] = sorted(found)[math.ceil(share * len(found)) - 1]
    return limits


def children(code: Tensor) -> Tensor:
    """How many children each word of a tree (n,) has, (n,)."""
    words = torch.arange(len(code))
    return torch.bincount(code[code != words], minlength=len(code))


def trees_within(limits: Tensor) -> FactorGraph:
    """The trees of n words that keep to their limits, (n,)."""
    n = len(limits)
    graph = FactorGraph((n, n))
    graph.add(DependencyTree(n), graph.variables)
    arcs = graph.variables[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
    for limit in limits[limits < n - 1].unique().tolist():
        graph.add(Budget(n - 1, limit), arcs[limits == limit])
    return graph
