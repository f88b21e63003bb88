"""Alignments are what they claim: ragged, normalized, and scored by distance."""

from __future__ import annotations

import pytest
import torch
from experiments.nli_alignment.alignments import ALIGNMENTS, SequentialAlignment
from experiments.nli_alignment.data import Batch

from fenchel import Sequence, sparsemap

SIZES = [(4, 3), (2, 5), (5, 5), (1, 1)]


def batch_of(sizes):
    """Pairs of those lengths, all words the same."""
    m, n = (torch.tensor([size[side] for size in sizes]) for side in (0, 1))
    words = [(torch.arange(int(side.max())) < side.unsqueeze(1)).long() for side in (m, n)]
    return Batch(words[0], m, words[1], n, torch.zeros(len(sizes), dtype=torch.int64))


def scores_of(pairs):
    return torch.randn(pairs, 5, 5, dtype=torch.float64)


def align(name):
    torch.manual_seed(1)
    module = ALIGNMENTS[name]().double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_a_pair_is_aligned_as_it_is_alone(name):
    module, scores = align(name), scores_of(4)
    found = module(scores, batch_of(SIZES))
    for place, (m, n) in enumerate(SIZES):
        alone = module(scores[place : place + 1, :m, :n], batch_of([(m, n)]))
        for whole, own in zip(found[:2], alone[:2], strict=True):
            torch.testing.assert_close(whole[place, :m, :n], own[0], rtol=1e-6, atol=1e-6)
            assert int((whole[place] != 0).sum()) == int((own != 0).sum())


@pytest.mark.parametrize("name", ["softmax", "sequential"])
def test_each_direction_sums_to_one(name):
    found = align(name)(scores_of(4), batch_of(SIZES))
    m, n = (torch.tensor([size[side] for size in SIZES]) for side in (0, 1))
    places = torch.arange(5)
    torch.testing.assert_close(found.rows.sum(2), (places < m.unsqueeze(1)).double())
    torch.testing.assert_close(found.columns.sum(1), (places < n.unsqueeze(1)).double())


def test_a_matching_uses_no_word_twice():
    found = align("matching")(3 * scores_of(4), batch_of(SIZES))
    assert found.rows is found.columns
    assert found.rows.sum(1).max() <= 1 + 1e-6
    assert found.rows.sum(2).max() <= 1 + 1e-6
    smaller = torch.tensor([min(size) for size in SIZES])
    torch.testing.assert_close(found.rows.sum((1, 2)), smaller.double())


def test_transitions_are_binned_by_distance():
    module, m, n = align("sequential"), 4, 5
    assert sum(parameter.numel() for parameter in module.parameters()) == 18
    scores = torch.randn(1, m, n, dtype=torch.float64)
    found = module(scores, batch_of([(m, n)]))
    for way, (length, tags, unaries, weights) in enumerate(
        [(m, n, scores, found.rows), (n, m, scores.mT, found.columns.mT)]
    ):
        steps, first, last = (
            getattr(module, name)[way].detach() for name in ("steps", "first", "last")
        )
        transitions = torch.tensor(
            [[steps[max(-2, min(2, b - a)) + 2] for b in range(tags)] for a in range(tags)]
        )
        start = torch.tensor([first[0], *[first[1]] * (tags - 1)])
        end = torch.tensor([*[last[0]] * (tags - 1), last[1]])
        expected = sparsemap(Sequence(length, tags), unaries, (transitions, start, end))
        torch.testing.assert_close(weights, expected.marginals)


def test_the_transitions_learn():
    module = SequentialAlignment()
    scores = torch.randn(4, 5, 5)
    (module(scores, batch_of(SIZES)).rows * torch.randn(4, 5, 5)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert bool(module.steps.grad[0].any())
    assert not bool(module.steps.grad[1].any())  # only the other direction uses these
