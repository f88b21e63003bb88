"""The `entmax` package: its names with options for each, and how answers are compared."""

from __future__ import annotations

from typing import Any

import entmax
import pytest
import torch
from torch import Tensor

theirs: Any = entmax  # untyped: its annotations would be guessed from defaults

MAPPINGS = {
    "sparsemax": {},
    "entmax15": {},
    "sparsemax_bisect": {},
    "entmax_bisect": {"alpha": 1.3},
    "normmax_bisect": {"alpha": 1.7},
    "budget_bisect": {"budget": 2.5},
}
LOSSES = {
    "sparsemax_loss": {},
    "entmax15_loss": {},
    "sparsemax_bisect_loss": {},
    "entmax_bisect_loss": {"alpha": 1.3},
    "normmax_bisect_loss": {"alpha": 1.7},
}
MODULES = {
    "Sparsemax": {},
    "Entmax15": {},
    "SparsemaxBisect": {},
    "EntmaxBisect": {"alpha": 1.3},
    "NormmaxBisect": {"alpha": 1.7},
    "BudgetBisect": {"budget": 2.5},
}
LOSS_MODULES = {
    "SparsemaxLoss": {},
    "Entmax15Loss": {},
    "SparsemaxBisectLoss": {},
    "EntmaxBisectLoss": {"alpha": 1.3},
    "NormmaxBisectLoss": {"alpha": 1.7},
}


def each(table: dict[str, dict]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "options"), table.items(), ids=list(table))


def scores(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def gradient(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return torch.autograd.grad(value, inputs, weights)


def close(actual: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-7)
