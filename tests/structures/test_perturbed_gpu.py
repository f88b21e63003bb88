"""Perturbed optimizers with scores on a GPU: as on the CPU."""

from __future__ import annotations

import pytest
import torch
from perturbed import seeded

from conftest import identify
from fenchel import structured_loss, structures
from fenchel.structures import AbstractStructure, Perturbed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
every = pytest.mark.parametrize("structure", structures.examples(), ids=identify)


@every
def test_noise_of_the_cpu_gives_the_same_results(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        perturbed = seeded(structure, samples=20)
        moved = scores.to(device).requires_grad_()
        u = perturbed(moved)
        loss = structured_loss(perturbed, moved, torch.zeros_like(u).detach())
        assert u.device == loss.device == moved.device
        (u.square().sum() + loss).backward()
        results.append((u.detach().cpu(), loss.detach().cpu(), moved.grad.cpu()))  # type: ignore[union-attr]
    torch.testing.assert_close(*results)


@every
def test_noise_of_the_gpu(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, device="cuda")
    assert Perturbed(structure)(scores).is_cuda
    assert Perturbed(structure).sample(scores, 4).is_cuda
