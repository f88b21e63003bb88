"""Factor graphs to test with, and random scores for any."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel import (
    Budget,
    DependencyTree,
    FactorGraph,
    Sequence,
)
from fenchel.structures import Or, Pair


def random_scores(
    graph: FactorGraph, *batch: int
) -> tuple[Tensor, tuple[Tensor | None, ...] | None]:
    """Scores, and couplings for the groups of pairs."""
    scores = torch.randn(*batch, *graph.shape, dtype=torch.float64)
    extra = tuple(
        torch.randn(*batch, group.count, dtype=torch.float64)
        if isinstance(group.factor, Pair)
        else None
        for group in graph.groups
        if group.factor.extra_names
    )
    return scores, extra or None


def parser(n: int, children: int) -> FactorGraph:
    """Trees whose words have few children; the root is the diagonal."""
    graph = FactorGraph((n, n))
    graph.add(DependencyTree(n), graph.variables)
    others = ~torch.eye(n, dtype=torch.bool)
    graph.add(Budget(n - 1, children), graph.variables[others].reshape(n, n - 1))
    return graph


def tagger() -> FactorGraph:
    """A sequence of four positions and two tags, in which the second tag occurs, with pairs."""
    graph = FactorGraph((4, 2))
    graph.add(Sequence(4, 2), graph.variables)
    graph.add(Or(), graph.variables[:, 1])
    graph.add(Pair(), torch.tensor([[1, 5], [3, 7]]))
    return graph
