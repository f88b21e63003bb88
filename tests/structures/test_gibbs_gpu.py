"""Distributions over structures with scores on a GPU."""

from __future__ import annotations

import gibbs
import pytest
import torch

from conftest import identify
from fenchel import Sequence, marginals
from fenchel.structures import AbstractStructure, entropy, k_best, kl, sample
from fenchel.structures._coded import CodedStructure

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("structure", gibbs.RANKED, ids=identify)
def test_the_k_best_are_those_of_the_cpu(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64)
    here, there = k_best(structure, scores, 7), k_best(structure, scores.cuda(), 7)
    assert there.codes.is_cuda
    assert there.codes.cpu().equal(here.codes)
    torch.testing.assert_close(there.value.cpu(), here.value)


@pytest.mark.parametrize("structure", gibbs.TRACTABLE, ids=identify)
def test_entropies_and_samples(structure: AbstractStructure) -> None:
    assert isinstance(structure, CodedStructure)
    scores, other = torch.randn(2, 3, *structure.shape, dtype=torch.float64)
    for found, truth in (
        (entropy(structure, scores.cuda()), entropy(structure, scores)),
        (kl(structure, scores.cuda(), other.cuda()), kl(structure, scores, other)),
    ):
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), truth)
    generator = torch.Generator("cuda").manual_seed(0)
    codes = sample(structure, scores.cuda(), 20_000, generator=generator)
    assert codes.is_cuda
    mean = structure.indicator(codes.flatten(0, 1)).reshape(3, -1, *structure.shape).mean(1)
    torch.testing.assert_close(mean.cpu(), marginals(structure, scores), rtol=0, atol=0.03)


def test_ragged_sequences_with_transitions() -> None:
    structure = Sequence(5, 3)
    scores, transitions = torch.randn(3, 5, 3).cuda(), torch.randn(3, 3).cuda()
    codes = sample(structure, scores, 10, transitions, lengths=[5, 1, 3])
    assert codes.ge(0).sum(-1).eq(torch.tensor([[5], [1], [3]], device="cuda")).all()
    found = k_best(structure, scores, 4, transitions, lengths=[5, 1, 3])
    assert found.value.isfinite().sum(1).tolist() == [4, 3, 4]
