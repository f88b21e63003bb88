"""Jacobians of factor graphs where scores tie, against finite differences."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from local_polytope import LOGIC
from test_factor_graph_native import python_rounds
from torch import Tensor

from conftest import seeds
from fenchel import (
    Bits,
    Budget,
    Choice,
    Custom,
    DependencyTree,
    FactorGraph,
    Matching,
    Sequence,
    sparsemap,
)
from fenchel.structures import (
    AbstractStructure,
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)

STEP = 1e-3


@pytest.fixture(params=["library", "python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both implementations of a graph's rounds and Jacobian."""
    if request.param == "library":
        yield
    else:
        with python_rounds(monkeypatch):
            yield


def check_jacobian(graph: FactorGraph, scores: Tensor, tol: float) -> bool:
    """Whether the marginals are differentiable; the Jacobian is compared if they are."""

    def marginals(scores: Tensor) -> Tensor:
        return sparsemap(graph, scores, tol=tol).marginals

    steps = STEP * torch.eye(len(scores), dtype=torch.float64)
    points = torch.cat([scores + steps, scores - steps, scores.unsqueeze(0)])
    nearby: Any = sparsemap(graph, points, tol=1e-11, max_iter=50_000)
    if not nearby.feasible.all():
        return False
    ahead, behind, here = nearby.marginals.split([len(scores), len(scores), 1])
    if ((ahead + behind) / 2 - here).abs().max() > 1e-5 * STEP:
        return False
    found = torch.autograd.functional.jacobian(marginals, scores)
    expected = (ahead - behind).T / (2 * STEP)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    return True


def best_corner(scores: Tensor) -> Tensor:
    """Of the corners of a square, to which all scores are equal."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    return corners[(corners.to(scores) @ scores).argmax()]


EXAMPLES: dict[str, tuple[list[tuple[AbstractStructure, list[int]]], list[float]]] = {
    "or_out": ([(OrOut(), [0, 1])], [0.3, 0.3]),
    "and_out": ([(AndOut(), [0, 1])], [0.3, 0.3]),
    "xor_out": ([(XorOut(), [0, 1])], [0.3, 0.3]),
    "or": ([(Or(), [0])], [1.0]),
    "imply": ([(Imply(), [0, 1])], [1.5, 1.0]),
    "at_most_one": ([(AtMostOne(), [0, 1])], [0.0, 1.5]),
    "knapsack": ([(Knapsack((1.0, 2.0), 1.0), [0, 1])], [2.0, 0.0]),
    "budget": ([(Budget(1, 0), [0])], [0.0]),
    "pair": ([(Pair(), [0, 1])], [0.5, 0.5]),
    "four_bits": ([(OrOut(), [0, 1, 2, 3])], [0.3, -1.0, -1.0, 0.3]),
    "custom": ([(Custom((2,), best_corner), [0, 1])], [0.5, 0.5]),
    "a_point": (
        [(AndOut(), [1, 2]), (XorOut(), [1, 2, 0]), (Xor(), [2, 1, 0])],
        [-1.0, -1.0, -1.0],
    ),
    "twice": ([(Xor(), [0, 1]), (Xor(), [1, 0]), (Or(), [0, 1])], [0.5, 0.5]),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("tol", [1e-6, 1e-10])
@pytest.mark.usefixtures("path")
def test_examples(name: str, tol: float) -> None:
    factors, scores = EXAMPLES[name]
    graph = FactorGraph((len(scores),))
    for factor, index in factors:
        graph.add(factor, torch.tensor(index))
    assert check_jacobian(graph, torch.tensor(scores, dtype=torch.float64), tol)


def random_factor(rng: random.Random, d: int) -> AbstractStructure:
    """A factor of d bits."""
    costs = tuple(float(rng.randint(0, 3)) for _ in range(d))
    factors = [
        *(kind(d) for kind in LOGIC if d >= kind.min_size),
        *(Bits(d), Choice(d), Budget(d, rng.randint(0, d), exact=rng.random() < 0.5)),
        Knapsack(costs, float(rng.randint(0, 4))),
        *([Pair()] if d == 2 else []),
        *([Matching(2, 2), DependencyTree(2), Sequence(2, 2)] if d == 4 else []),
    ]
    return rng.choice(factors)


@pytest.mark.parametrize("seed", seeds(12, 100))
@pytest.mark.usefixtures("path")
def test_random_graphs(seed: int) -> None:
    rng, num_smooth = random.Random(seed), 0
    for _ in range(20):
        n = rng.randint(1, 5)
        graph = FactorGraph((n,))
        for _ in range(rng.randint(1, 2)):
            factor = random_factor(rng, rng.randint(1, n))
            size = math.prod(factor.shape)
            index = torch.tensor(rng.sample(range(n), size)).reshape(factor.shape)
            negated = torch.tensor([rng.random() < 0.2 for _ in range(size)])
            graph.add(factor, index, negated.reshape(factor.shape))
        scores = torch.tensor([rng.randint(-4, 4) / 2 for _ in range(n)], dtype=torch.float64)
        num_smooth += check_jacobian(graph, scores, 1e-10)
    assert num_smooth > 5
