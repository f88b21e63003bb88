"""Top-k: the k best, and when their support is the whole one."""

from __future__ import annotations

import pytest
import torch
from enumerable import Categories, Configurations, gradients
from hypothesis import given, settings
from hypothesis import strategies as st

import fenchel
from fenchel.latent import estimators, k_best, marginalize


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_k_best_against_all_configurations(d: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, d, generator=generator).double()
    found = k_best(scores, k)
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * d).reshape(-1, d)
    ground_truth = (scores @ every.T).sort(descending=True).values[:, :k]
    assert found.shape == (2, min(k, 2**d), d)
    torch.testing.assert_close((found * scores.unsqueeze(1)).sum(-1), ground_truth)
    for rows in found:
        assert len(rows.unique(dim=0)) == len(rows)


def test_k_best_of_equal_and_of_forbidden_bits() -> None:
    zeros = k_best(torch.zeros(1, 5), 32)
    assert len(zeros[0].unique(dim=0)) == 32
    forbidden = k_best(torch.tensor([1.0, -torch.inf, 0.5]), 4)
    assert not forbidden[:, 1].any()


@pytest.mark.parametrize(
    "scores",
    [(1.0, -torch.inf, 0.5), (torch.inf, -torch.inf), (1.0, torch.nan, -2.0), (6e4,) * 5],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_k_best_are_different(scores: tuple[float, ...], dtype: torch.dtype) -> None:
    found = k_best(torch.tensor(scores, dtype=dtype), 32)
    assert len(found) == len(found.unique(dim=0)) == 2 ** len(scores)


def test_a_configuration_with_a_forbidden_bit_does_not_stand_for_another() -> None:
    scores = torch.tensor([0.3, 0.1, -torch.inf], dtype=torch.float64)
    found = marginalize(
        scores, lambda item, z: z.sum(1), estimators.TopK(fenchel.Bits(3), k=8, max_k=8)
    )
    expected = marginalize(scores[:2], lambda item, z: z.sum(1), estimators.TopK(fenchel.Bits(2)))
    assert found.calls.equal(expected.calls)
    torch.testing.assert_close(found.marginals[:2], expected.marginals)


@pytest.mark.parametrize("mapping", [fenchel.Sparsemax(), fenchel.Entmax(1.5), fenchel.Softmax()])
def test_doubling_ends_with_the_whole_support(mapping: fenchel.mappings.AbstractMapping) -> None:
    model = Categories.random(items=4, categories=50, scale=0.5)
    ground_truth = marginalize(model.scores, model.loss, mapping)
    outcome = marginalize(model.scores, model.loss, estimators.TopK(mapping, k=1))
    assert outcome.exact.all()
    assert outcome.calls.equal(ground_truth.calls)
    torch.testing.assert_close(outcome.value, ground_truth.value)
    torch.testing.assert_close(outcome.marginals, ground_truth.marginals)
    torch.testing.assert_close(outcome.entropy, ground_truth.entropy)
    torch.testing.assert_close(
        gradients(outcome.value, model.parameters), gradients(ground_truth.value, model.parameters)
    )


def test_a_support_that_does_not_fit_is_told() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0, 0.0], [0.2, 0.1, 0.0, 0.0]])
    outcome = marginalize(scores, lambda i, z: z.float(), estimators.TopK(k=2, max_k=2))
    assert outcome.exact.tolist() == [True, False]
    torch.testing.assert_close(outcome.marginals.sum(-1), torch.ones(2))


def test_bits_against_sparsemax_of_all_configurations() -> None:
    model = Configurations.random(items=5, bits=6)
    with torch.no_grad():
        model.scores.mul_(0.4)
    p = fenchel.sparsemax(model.scores @ model.all_configurations().T)
    ground_truth = (p * model.table()).sum(-1)
    outcome = marginalize(model.scores, model.loss, estimators.TopK(fenchel.Bits(6), k=2))
    assert outcome.exact.all()
    assert outcome.calls.equal((p > 0).sum(-1))
    torch.testing.assert_close(outcome.value, ground_truth)
    torch.testing.assert_close(outcome.marginals, p @ model.all_configurations())
    torch.testing.assert_close(
        gradients(outcome.value, model.parameters), gradients(ground_truth, model.parameters)
    )
    short = marginalize(model.scores, model.loss, estimators.TopK(fenchel.Bits(6), k=2, max_k=2))
    assert short.exact.equal((p > 0).sum(-1) < 2)


def test_all_configurations_are_exact_even_if_all_count() -> None:
    outcome = marginalize(
        torch.zeros(1, 3), lambda i, z: z.sum(-1), estimators.TopK(fenchel.Bits(3))
    )
    assert outcome.exact.all()
    assert outcome.calls.tolist() == [8]


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="`over` must be softmax, sparsemax or entmax"):
        estimators.TopK(fenchel.Fusedmax())
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        estimators.TopK(k=0)
    with pytest.raises(ValueError, match="`max_k` must be at least 8, got 4"):
        estimators.TopK(k=8, max_k=4)
    with pytest.raises(ValueError, match=r"`scores` must have shape \(..., 3\), got \(1, 4\)"):
        marginalize(torch.zeros(1, 4), lambda i, z: z.sum(-1), estimators.TopK(fenchel.Bits(3)))


def test_one_item_and_none() -> None:
    for scores in (torch.tensor([1.0, 0.5, 0.0]), torch.zeros(2, 0, 3)):
        outcome = marginalize(scores, lambda i, z: z.float(), estimators.TopK(k=1))
        expected = marginalize(scores, lambda i, z: z.float())
        torch.testing.assert_close(outcome.value, expected.value)
        torch.testing.assert_close(outcome.marginals, expected.marginals)
