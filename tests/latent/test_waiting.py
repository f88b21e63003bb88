"""How often an expectation and its gradient wait for a device: where a size is read from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fenchel
from fenchel.latent import History, embed, estimators, marginalize

BITS = fenchel.Bits(12)
WAITS = {
    "sparsemax": (estimators.Exact(), 1),
    "dense": (estimators.Exact(fenchel.Softmax()), 1),
    "sparsemap": (estimators.Exact(BITS), 2),
    "budget": (estimators.Exact(fenchel.Budget(12, 6)), 2),
    "top-k": (estimators.TopK(BITS, k=8, max_k=8), 1),
    "sum-and-sample": (estimators.SumAndSample(), 1),
    "score-function": (estimators.ScoreFunction(BITS), 0),
    "moving-average": (estimators.ScoreFunction(None, estimators.MovingAverage()), 0),
    "self-critic": (estimators.ScoreFunction(None, estimators.SelfCritic()), 0),
    "gumbel": (estimators.GumbelSoftmax(), 0),
    "straight-through": (estimators.StraightThrough(BITS), 0),
}


class Readings(TorchDispatchMode):
    """Counts the operators whose result the host must know."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.count += func.__name__.split(".")[0] in ("_local_scalar_dense", "nonzero", "equal")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WAITS)
def test_a_step_waits_only_for_the_sizes_of_supports(name: str) -> None:
    estimator, expected = WAITS[name]
    scores = torch.randn(4, 12, requires_grad=True)
    weight = torch.randn(12, 3, requires_grad=True)

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return embed(z, weight).square().sum(-1)

    def step() -> int:
        with Readings() as readings:
            outcome = marginalize(scores, loss, estimator)
            History().add(outcome)
            (
                outcome.value + outcome.kl(structure=BITS if name == "budget" else None)
            ).sum().backward()
        return readings.count

    step()  # what is computed once and kept
    assert step() == expected
