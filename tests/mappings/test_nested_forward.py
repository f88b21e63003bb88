"""Forward mode inside forward mode: derivatives of every order by `jacfwd` alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jacrev

import fenchel
from conftest import identify
from fenchel import mappings
from fenchel.structures import Xor

SCORES = (1.0, 0.6, 0.1, -0.3)
MAPPINGS = {identify(m): m for m in mappings.examples()}


def graph() -> fenchel.FactorGraph:
    made = fenchel.FactorGraph((3,))
    made.add(Xor(), torch.tensor([[0, 1], [1, 2]]))
    return made


STRUCTURED: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemap": lambda x: fenchel.sparsemap(fenchel.Sequence(3, 2), x / 5).marginals.pow(3).sum(),
    "log_partition": lambda x: fenchel.log_partition(fenchel.Sequence(3, 2), x) ** 2,
    "sparsemap loss": lambda x: (
        fenchel.structured_loss(fenchel.Sequence(3, 2), x / 5, torch.tensor([0, 1, 0])) ** 2
    ),
    "graph": lambda x: fenchel.sparsemap(graph(), x[:, 0] / 9, tol=1e-12).marginals.pow(3).sum(),
}


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_second_and_third_derivatives(mapping: mappings.AbstractMapping) -> None:
    x = torch.tensor(SCORES, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return mapping.loss(x, torch.tensor(1)) ** 2 if mapping.total == 1.0 else x.sum()

    for f in (lambda x: mapping(x).pow(3).sum(), lambda x: mapping.max(x) ** 2, loss):
        torch.testing.assert_close(jacfwd(jacfwd(f))(x), jacrev(jacrev(f))(x))
    f = jacfwd(lambda x: mapping(x).pow(3).sum())
    torch.testing.assert_close(jacfwd(jacfwd(f))(x), jacrev(jacrev(f))(x))


def test_in_alpha_beside_scores() -> None:
    def f(alpha: Tensor) -> Tensor:
        return fenchel.entmax(torch.tensor(SCORES, dtype=torch.float64), alpha=alpha).pow(3).sum()

    alpha = torch.tensor(1.4, dtype=torch.float64)
    torch.testing.assert_close(jacfwd(jacfwd(f))(alpha), jacrev(jacrev(f))(alpha))


@pytest.mark.parametrize("f", STRUCTURED.values(), ids=STRUCTURED.keys())
def test_structures(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(jacfwd(jacfwd(f))(x), jacrev(jacrev(f))(x))


@pytest.mark.parametrize("strategy", ["forward-mode", "reverse-mode"])
@pytest.mark.parametrize(
    "f",
    [
        fenchel.entmax,
        fenchel.Sparsemax().max,
        lambda x: fenchel.marginals(fenchel.Sequence(3, 2), x),
        lambda x: fenchel.sparsemap(fenchel.Sequence(3, 2), x / 5).marginals,
        lambda x: fenchel.fenchel_young_loss("entmax", x, torch.tensor([0, 1, 1])),
    ],
    ids=["entmax", "max", "marginals", "sparsemap", "loss"],
)
def test_batches_of_tangents(f: Callable[[Tensor], Tensor], strategy: str) -> None:
    x = torch.randn(3, 2, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(f, x, vectorize=True, strategy=strategy), jacobian(f, x))
