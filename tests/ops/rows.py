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


def hard_rows(d: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Rows on which a threshold loses its digits: ties, near-ties, peaks over many equals."""

    def normal() -> torch.Tensor:
        return torch.randn(d, dtype=torch.float64, generator=generator)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    peaks = torch.zeros(3, d, dtype=torch.float64)
    peaks[0, -1], peaks[1, 0], peaks[2, d // 2] = 0.9, uniform(0.85, 0.95), uniform(0.5, 1.2)
    steps = torch.full((d,), 0.3, dtype=torch.float64)
    steps[: max(1, d // 10)] = uniform(0.3, 0.6)
    fifths = torch.full((d,), 0.8, dtype=torch.float64)
    fifths[:5] = 1.0
    rounded = (3 * normal()).round() / 3
    random = [normal(), normal() / 10, 10 * normal(), normal() + 1000]
    near = [rounded + 1e-7 * normal(), rounded + 1e-16 * normal()]
    return torch.stack([*peaks, steps, fifths, rounded, *near, *random])
