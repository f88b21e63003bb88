"""Random factor graphs, and their relaxations solved by general linear programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from fenchel import Budget, Choice, FactorGraph, Sequence, testing
from fenchel.structures import (
    AbstractStructure,
    AndOut,
    AtMostOne,
    Imply,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)
from fenchel.structures._factor_graph import Group
from fenchel.structures._factors import LogicFactor

LOGIC = (Xor, AtMostOne, Or, Imply, XorOut, OrOut, AndOut)


def members(factor: object) -> np.ndarray:
    """All structures of a factor, (K, size)."""
    if isinstance(factor, LogicFactor | Pair):
        size = factor.shape[0]
        bits = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * size).reshape(-1, size)
        if isinstance(factor, Pair):
            return bits.numpy()
        return bits[(factor.project(bits) - bits).abs().amax(1) < 1e-9].numpy()
    return testing.enumerate_members(factor).flatten(1).double().numpy()  # type: ignore[arg-type]


def random_graph(rng: random.Random, n: int = 6) -> FactorGraph:
    """Two to four groups of factors over n variables, some of which may be negated."""
    graph = FactorGraph((n,))
    for _ in range(rng.randint(2, 4)):
        kind = rng.choice(["logic", "logic", "pair", "budget", "choice", "sequence"])
        size = rng.randint(2, 4)
        factor = {
            "logic": rng.choice(LOGIC)(),
            "pair": Pair(),
            "budget": Budget(size, rng.randint(1, size), exact=rng.random() < 0.3),
            "choice": Choice(size),
            "sequence": Sequence(2, 2),
        }[kind]
        shape = (size,) if kind in ("logic", "budget", "choice") else factor.shape
        count = rng.randint(1, 2)
        numbers = [rng.sample(range(n), int(np.prod(shape))) for _ in range(count)]
        index = torch.tensor(numbers).reshape(count, *shape)
        negated = torch.rand(index.shape) < 0.3 if rng.random() < 0.3 else None
        graph.add(factor, index, negated)
    return graph


@dataclass
class Program:
    """The relaxation of a graph, over its variables and the weights of each factor's structures.

    equations @ (variables, weights) = right.
    """

    graph: FactorGraph

    def __post_init__(self) -> None:
        n = self.n = int(np.prod(self.graph.shape))
        rows, right, start = [], [], n
        blocks = []
        for group in self.graph.groups:
            own = members(group.factor)
            for f in range(group.count):
                points = own.copy()
                if group.negated is not None:
                    flipped = group.negated[f].flatten().numpy()
                    points[:, flipped] = 1 - points[:, flipped]
                blocks.append((start, own, points, group.index[f].flatten().numpy()))
                start += len(own)
        self.blocks, self.size = blocks, start
        for begin, _, points, index in blocks:
            total = np.zeros(start)
            total[begin : begin + len(points)] = 1
            rows.append(total)
            right.append(1.0)
            for i, variable in enumerate(index):
                row = np.zeros(start)
                row[begin : begin + len(points)] = points[:, i]
                row[variable] -= 1
                rows.append(row)
                right.append(0.0)
        self.equations, self.right = np.array(rows), np.array(right)

        self.pairs = [
            (begin, own)
            for group, (begin, own, _, _) in zip(self._group_of_block, blocks, strict=True)
            if isinstance(group.factor, Pair)
        ]

    @property
    def _group_of_block(self) -> list[Group]:
        return [group for group in self.graph.groups for _ in range(group.count)]

    def best(self, scores: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor] | None:
        """The best vertex: variables (n) and how far both of each pair are on; None if infeasible.

        Args:
            scores: (n).
            couplings: one for each pair, in the order of the graph.
        """
        gains = np.zeros(self.size)
        gains[: self.n] = scores.numpy()
        for (begin, own), coupling in zip(self.pairs, couplings.tolist(), strict=True):
            gains[begin : begin + len(own)] = own.prod(1) * coupling
        found = scipy.optimize.linprog(
            -gains,
            A_eq=self.equations,
            b_eq=self.right,
            bounds=(0, 1),
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if found.status != 0:
            return None
        on = [found.x[begin : begin + len(own)] @ own.prod(1) for begin, own in self.pairs]
        return torch.tensor(found.x[: self.n]), torch.tensor(np.array(on))


class LocalPolytope(AbstractStructure):
    """The vertices of the relaxation of a graph, found by a general linear program."""

    extra_names = ("couplings",)

    def __init__(self, graph: FactorGraph) -> None:
        self.name, self.program = "LocalPolytope", Program(graph)  # type: ignore[misc]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.program.n,)

    def argmax(
        self, scores: Tensor, extra_scores: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert extra_scores is not None
        found = [self.program.best(x, y) for x, y in zip(scores, extra_scores, strict=True)]
        u, v = zip(*(x for x in found if x is not None), strict=True)
        return torch.stack(u), torch.stack(v)

    def num_extra_dims(self, position: int, shape: torch.Size, batch: torch.Size) -> int:
        return 1

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        return iter(())
