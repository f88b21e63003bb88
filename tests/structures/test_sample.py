"""Samples have the frequencies of the Gibbs distribution."""

from __future__ import annotations

from collections.abc import Iterator

import gibbs
import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import (
    Bits,
    Budget,
    Choice,
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    marginals,
)
from fenchel.structures import AbstractStructure, sample
from fenchel.structures._coded import CodedStructure
from fenchel.structures._gibbs import _scores

tractable = pytest.mark.parametrize("structure", gibbs.TRACTABLE, ids=identify)
NUM_SAMPLES = 20_000


def chi_square(samples: Tensor, codes: Tensor, values: Tensor) -> tuple[float, int]:
    """Pearson's statistic of samples (N, positions) of the codes (K, positions) with scores (K),
    and its degrees of freedom. Codes that are expected less than five times count as one."""
    each, counts = samples.unique(dim=0, return_counts=True)
    same = (each.unsqueeze(1) == codes).all(-1)
    assert (same.sum(1) == 1).all(), "a sample that is no member"
    found, expected = counts.double() @ same.double(), values.softmax(0) * len(samples)
    assert (found[values == -torch.inf] == 0).all()
    often = expected >= 5
    cells = [(found[often], expected[often])]
    if expected[~often].sum() >= 5:
        cells.append((found[~often].sum().reshape(1), expected[~often].sum().reshape(1)))
    found, expected = (torch.cat(column) for column in zip(*cells, strict=True))
    return float(((found - expected) ** 2 / expected).sum()), len(expected) - 1


def check(statistics: list[tuple[float, int]]) -> None:
    """The sum of independent statistics is not too large: one in a million would be."""
    total, freedom = (sum(column) for column in zip(*statistics, strict=True))
    if freedom:
        halves = torch.tensor([freedom / 2, total / 2], dtype=torch.float64)
        assert torch.special.gammaincc(*halves) > 1e-6, (total, freedom)


def check_frequencies(structure: AbstractStructure, scores: Tensor) -> None:
    found = sample(structure, scores, NUM_SAMPLES)
    statistics = []
    for instance, codes in zip(scores, found, strict=True):
        every, values = gibbs.totals(structure, instance)
        if (values == -torch.inf).all():
            assert (codes == -1).all()
        else:
            statistics.append(chi_square(codes, every, values))
    check(statistics or [(0.0, 0)])


@tractable
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_frequencies(structure: AbstractStructure, scale: float) -> None:
    check_frequencies(structure, scale * torch.randn(2, *structure.shape, dtype=torch.float64))


@tractable
def test_frequencies_with_forbidden_parts(structure: AbstractStructure) -> None:
    scores = torch.randn(12, *structure.shape, dtype=torch.float64)
    scores[torch.rand(scores.shape) < 0.4] = -torch.inf
    scores[0] = -torch.inf
    check_frequencies(structure, scores)


@pytest.mark.parametrize("projective", [False, True])
def test_trees_of_few_arcs(projective: bool) -> None:
    """Many have a word that no other word can be the head of."""
    scores = torch.randn(40, 4, 4, dtype=torch.float64)
    scores[torch.rand(scores.shape) < 0.55] = -torch.inf
    check_frequencies(DependencyTree(4, projective=projective), scores)


@tractable
def test_frequencies_of_ragged_batches(structure: AbstractStructure) -> None:
    sizes = gibbs.lengths_of(structure)
    scores = torch.randn(len(sizes), *structure.shape, dtype=torch.float64)
    lengths = torch.cat(sizes)
    outside = ~structure.length_mask(lengths.unsqueeze(1))
    found = sample(structure, scores.masked_fill(outside, torch.nan), NUM_SAMPLES, lengths=lengths)
    for instance, codes, size in zip(scores, found, sizes, strict=True):
        every, values = gibbs.totals(structure, instance, None, size)
        if len(every):
            check([chi_square(codes, every, values)])
        else:
            assert (codes == -1).all()


@pytest.mark.parametrize("form", gibbs.FORMS)
def test_sequences_with_extra_scores(form: str) -> None:
    structure = Sequence(3, 3)
    scores, extra = torch.randn(3, 3, 3, dtype=torch.float64), gibbs.extra_scores(structure, form)
    found = sample(structure, scores, NUM_SAMPLES, extra, lengths=[3, 2, 1])
    for instance, codes, size in zip(scores, found, (3, 2, 1), strict=True):
        check([chi_square(codes, *gibbs.totals(structure, instance, extra, torch.tensor([size])))])


def test_transitions_of_each_instance() -> None:
    structure = Sequence(3, 2)
    scores = torch.randn(2, 3, 2, dtype=torch.float64)
    transitions = torch.randn(2, 1, 2, 2, dtype=torch.float64)
    transitions[1, 0, 0, 1] = -torch.inf
    found = sample(structure, scores, NUM_SAMPLES, transitions)
    for i in range(2):
        extra = (transitions[i, 0], None, None)
        check([chi_square(found[i], *gibbs.totals(structure, scores[i], extra))])


def test_words_that_prefer_each_other_cost_no_time() -> None:
    """A random walk between the first two words would take exp(60) steps to leave them."""
    scores = torch.zeros(1, 4, 4, dtype=torch.float64)
    scores[0, 0, 1] = scores[0, 1, 0] = 60.0
    for single_root in (True, False):
        check_frequencies(DependencyTree(4, single_root=single_root), scores)


@pytest.mark.parametrize(
    "structure",
    [Sequence(3, 3), DependencyTree(4), DependencyTree(4, projective=True), Choice(5)],
    ids=identify,
)
def test_a_large_score_of_a_position_hides_no_small_ones(structure: AbstractStructure) -> None:
    scores = torch.randn(1, *structure.shape, dtype=torch.float64)
    expected = scores.clone()
    if isinstance(structure, Choice):
        scores, expected = scores.round() + 2.0**50, scores.round()
    elif isinstance(structure, Sequence):
        scores[:, 0], expected[:, 0] = 2.0**60, 0.0
    else:
        scores[:, :, 0], expected[:, :, 0] = 2.0**60, 0.0
    codes = sample(structure, scores, NUM_SAMPLES)[0]
    check([chi_square(codes, *gibbs.totals(structure, expected[0]))])


@tractable
def test_samples_of_large_scores_are_members(structure: AbstractStructure) -> None:
    assert isinstance(structure, CodedStructure)
    for scale in (1e3, 1e6):
        scores = scale * torch.randn(3, *structure.shape, dtype=torch.float64)
        codes = sample(structure, scores, 5).flatten(0, 1)
        assert structure.is_valid(codes, None).all()


def test_large_trees() -> None:
    for projective in (False, True):
        structure = DependencyTree(40, projective=projective)
        codes = sample(structure, 3 * torch.randn(2, 40, 40), 50, lengths=[40, 23])
        assert codes.shape == (2, 50, 40)
        for instance, length in zip(codes, (40, 23), strict=True):
            assert structure.is_valid(instance, torch.full((50, 1), length)).all()


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("single_root", [False, True])
def test_arcs_of_large_trees_have_their_marginals(projective: bool, single_root: bool) -> None:
    structure = DependencyTree(12, projective, single_root)
    scores = 2 * torch.randn(12, 12, dtype=torch.float64)
    found = structure.indicator(sample(structure, scores, NUM_SAMPLES)).mean(0)
    expected = marginals(structure, scores)
    deviation = (expected * (1 - expected) / NUM_SAMPLES).sqrt()
    assert ((found - expected).abs() <= 5 * deviation + 1e-4).all()


@tractable
def test_a_generator_makes_samples_reproducible(structure: AbstractStructure) -> None:
    scores = 0.1 * torch.randn(2, 3, *structure.shape)
    before = torch.get_rng_state()

    def draw(seed: int) -> Tensor:
        return sample(structure, scores, 100, generator=torch.Generator().manual_seed(seed))

    assert draw(1).equal(draw(1))
    if len(gibbs.totals(structure, scores[0, 0])[0]) > 1:
        assert not draw(1).equal(draw(2))
    assert before.equal(torch.get_rng_state())
    torch.manual_seed(3)
    first = sample(structure, scores, 100)
    torch.manual_seed(3)
    assert first.equal(sample(structure, scores, 100))


@tractable
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_batch_and_type(structure: AbstractStructure, dtype: torch.dtype) -> None:
    assert isinstance(structure, CodedStructure)
    scores = torch.randn(2, 3, *structure.shape, dtype=dtype, requires_grad=True)
    for batch in (scores, scores[0, 0], scores[:0], scores[:, :0]):
        codes = sample(structure, batch, 4)
        size = batch.ndim - len(structure.shape)
        assert codes.shape == (*batch.shape[:size], 4, structure.positions)
        assert codes.dtype == torch.int64
        assert not codes.requires_grad
        assert structure.is_valid(codes.reshape(-1, structure.positions), None).all()


@tractable
def test_unsolvable_instances_leave_the_others_alone(structure: AbstractStructure) -> None:
    assert isinstance(structure, CodedStructure)
    scores = torch.randn(3, *structure.shape)
    scores[0].flatten()[0], scores[2].flatten()[-1] = torch.nan, torch.inf
    codes = sample(structure, scores, 4)
    assert (codes[[0, 2]] == -1).all()
    assert structure.is_valid(codes[1], None).all()


@tractable
def test_little_memory(structure: AbstractStructure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scores, "MAX_NUMBERS", 5000)  # one instance at a time, samples in pieces
    check_frequencies(structure, torch.randn(2, *structure.shape, dtype=torch.float64))


class Ends(AbstractStructure):
    """The first or the last of three entries."""

    shape = (3,)

    def argmax(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError

    def log_partition(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        return scores[:, ::2].logsumexp(1)

    @classmethod
    def examples(cls) -> Iterator[AbstractStructure]:
        yield cls()


Ends.name = "ends"  # after its class is made, so that it is not registered


def test_what_cannot_be_sampled() -> None:
    with pytest.raises(NotImplementedError, match="a permanent"):
        sample(Matching(2, 2), torch.zeros(2, 2), 1)
    with pytest.raises(NotImplementedError, match="custom has no log-partition"):
        sample(Custom((3,), lambda scores: scores), torch.zeros(3), 1)
    with pytest.raises(NotImplementedError, match="ends has no algorithm that samples"):
        sample(Ends(), torch.zeros(3), 1)


def test_wrong_arguments() -> None:
    scores = torch.zeros(4)
    with pytest.raises(TypeError, match="`structure` must be a structure"):
        sample("bits", scores, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`n` must be at least 1, got 0"):
        sample(Bits(4), scores, 0)
    with pytest.raises(TypeError, match="`n` must be an int, got float"):
        sample(Choice(4), scores, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`generator` must be a torch\\.Generator, got int"):
        sample(Budget(4, 2), scores, 1, generator=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`scores` must have shape"):
        sample(Bits(3), scores, 1)
    with pytest.raises(ValueError, match="`extra_scores` must be None for bits"):
        sample(Bits(4), scores, 1, scores)
