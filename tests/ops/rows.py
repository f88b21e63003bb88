"""Rows of every kind, on which kernels are compared with their references."""

from __future__ import annotations

import torch


def rows_of_every_kind(d: int, copies: int = 4) -> torch.Tensor:
    """Random rows of several scales, ties, constants, ramps, masks and outliers."""
    ramp = torch.linspace(-2, 2, d, dtype=torch.float64)
    rows = [
        scale * torch.randn(copies, d, dtype=torch.float64) for scale in (0.01, 1.0, 10.0, 1000.0)
    ]
    rows += [
        torch.randn(2, d).double().round(),
        torch.zeros(1, d).double(),
        ramp[None],
        -ramp[None],
    ]
    masked = torch.randn(copies, d, dtype=torch.float64)
    masked[torch.rand(copies, d) < 0.5] = -torch.inf
    special = torch.randn(6, d, dtype=torch.float64)
    special[0, d // 2] = torch.nan
    special[1] = -torch.inf
    special[2, :: max(d // 2, 1)] = torch.inf
    special[3, -1] = 1e30
    special[4] = -1e30
    special[5, 0] = -torch.inf
    return torch.cat([*rows, masked, special])
