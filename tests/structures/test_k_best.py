"""The k best structures are those of a sorted list of all members."""

from __future__ import annotations

import gibbs
import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import Bits, Choice, Custom, DependencyTree, Matching, Sequence, map_inference
from fenchel.structures import AbstractStructure, KBest, _gibbs, k_best
from fenchel.structures._coded import CodedStructure
from fenchel.structures._gibbs import _scores

ranked = pytest.mark.parametrize("structure", gibbs.RANKED, ids=identify)


def check(found: KBest, i: int, codes: Tensor, values: Tensor) -> None:
    """The ranking of instance i is that of codes (K, positions) with these scores (K)."""
    k = found.value.shape[1]
    best = values[values > -torch.inf].sort(descending=True).values[:k]
    torch.testing.assert_close(found.value[i, : len(best)], best, rtol=1e-12, atol=1e-12)
    assert (found.value[i, len(best) :] == -torch.inf).all()
    assert (found.codes[i, len(best) :] == -1).all()
    ranking = found.codes[i, : len(best)]
    same = (ranking.unsqueeze(1) == codes).all(-1)
    assert (same.sum(1) == 1).all(), "a code that is no member"
    assert (same.sum(0) <= 1).all(), "a member twice"
    torch.testing.assert_close(values[same.nonzero()[:, 1]], best, rtol=1e-12, atol=1e-12)


@ranked
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_any_scores(structure: AbstractStructure, k: int) -> None:
    kinds = {
        "random": torch.randn(3, *structure.shape, dtype=torch.float64),
        "large": 1e6 * torch.randn(3, *structure.shape, dtype=torch.float64),
        "ties": torch.randn(3, *structure.shape, dtype=torch.float64).round(),
        "zeros": torch.zeros(1, *structure.shape, dtype=torch.float64),
    }
    forbidden = torch.randn(8, *structure.shape, dtype=torch.float64)
    forbidden[torch.rand(forbidden.shape) < 0.35] = -torch.inf
    forbidden[0] = -torch.inf
    for scores in (*kinds.values(), forbidden):
        found = k_best(structure, scores, k)
        for i, instance in enumerate(scores):
            check(found, i, *gibbs.totals(structure, instance))


@ranked
def test_more_than_there_are(structure: AbstractStructure) -> None:
    scores = torch.randn(1, *structure.shape, dtype=torch.float64)
    codes, values = gibbs.totals(structure, scores[0])
    if len(codes) <= 125:
        check(k_best(structure, scores, len(codes) + 3), 0, codes, values)


@ranked
def test_the_first_is_the_best(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape)
    found, best = k_best(structure, scores, 2), map_inference(structure, scores)
    assert best.codes is not None
    assert found.codes[:, 0].equal(best.codes)
    torch.testing.assert_close(found.value[:, 0], best.value)


@ranked
def test_ragged_batches(structure: AbstractStructure) -> None:
    sizes = gibbs.lengths_of(structure)
    if isinstance(structure, Matching) and structure.rows > 1:
        sizes += [torch.tensor([2, 1]), torch.tensor([1, 2])]
    scores = torch.randn(len(sizes), *structure.shape, dtype=torch.float64)
    lengths = torch.stack(sizes)
    outside = ~structure.length_mask(lengths)
    given = lengths if len(structure.max_lengths) > 1 else lengths.squeeze(1)
    found = k_best(structure, scores.masked_fill(outside, torch.nan), 7, lengths=given)
    for i, size in enumerate(sizes):
        check(found, i, *gibbs.totals(structure, scores[i], None, size))


@pytest.mark.parametrize("form", gibbs.FORMS)
def test_sequences_with_extra_scores(form: str) -> None:
    structure = Sequence(3, 3)
    scores = torch.randn(3, 3, 3, dtype=torch.float64)
    extra = gibbs.extra_scores(structure, form)
    if extra[0] is not None:
        extra[0][..., 0, 1] = -torch.inf
    lengths = torch.tensor([3, 2, 1])
    found = k_best(structure, scores, 30, extra, lengths=lengths)
    for i in range(3):
        check(found, i, *gibbs.totals(structure, scores[i], extra, lengths[i : i + 1]))


@ranked
def test_values_have_indicators_as_gradients(structure: AbstractStructure) -> None:
    assert isinstance(structure, CodedStructure)
    scores = torch.randn(2, *structure.shape, dtype=torch.float64, requires_grad=True)
    found = k_best(structure, scores, 5)
    exists = found.value > -torch.inf
    weights = torch.where(exists, torch.randn_like(found.value), 0.0)
    kept = torch.where(exists, found.value, 0.0)
    (grad,) = torch.autograd.grad((weights * kept).sum(), scores)
    indicators = structure.indicator(found.codes)
    weights = weights.reshape(*weights.shape, *[1] * len(structure.shape))
    torch.testing.assert_close(grad, (weights * indicators).sum(1))


def test_a_large_score_of_a_position_hides_no_small_ones() -> None:
    structure = Sequence(3, 3)
    scores = torch.randn(1, 3, 3, dtype=torch.float64)
    scores[:, 0] = 0.0
    large = scores.clone()
    large[:, 0] = 2.0**60
    codes, values = gibbs.totals(structure, scores[0])
    ranking = k_best(structure, large, 12).codes[0]
    found = values[(ranking.unsqueeze(1) == codes).all(-1).nonzero()[:, 1]]
    torch.testing.assert_close(found, values.sort(descending=True).values[:12])


def test_gradients_of_extra_scores() -> None:
    structure = Sequence(4, 3)
    inputs = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(lambda x, t: k_best(structure, x, 6, t).value, inputs)


@ranked
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_batch_and_type(structure: AbstractStructure, dtype: torch.dtype) -> None:
    assert isinstance(structure, CodedStructure)
    scores = torch.randn(2, 3, *structure.shape, dtype=dtype)
    whole = k_best(structure, scores, 4)
    assert whole.codes.shape == (2, 3, 4, structure.positions)
    assert whole.codes.dtype == torch.int64
    assert whole.value.shape == (2, 3, 4)
    assert whole.value.dtype == dtype
    exact = k_best(structure, scores.double(), 4)
    assert whole.codes.equal(exact.codes)
    assert whole.value.equal(exact.value.to(dtype))
    single = k_best(structure, scores[1, 2], 4)
    assert single.codes.equal(whole.codes[1, 2])
    for batch in (scores[:0], scores[:, :0]):
        none = k_best(structure, batch, 4)
        assert none.codes.shape == (*batch.shape[:2], 4, structure.positions)
        assert none.value.shape == (*batch.shape[:2], 4)


@ranked
def test_unsolvable_instances_leave_the_others_alone(structure: AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape)
    alone = k_best(structure, scores[1], 3)
    scores[0].flatten()[0], scores[2].flatten()[-1] = torch.nan, torch.inf
    found = k_best(structure, scores, 3)
    assert (found.codes[[0, 2]] == -1).all()
    assert found.value[[0, 2]].isnan().all()
    assert found.codes[1].equal(alone.codes)


@ranked
def test_little_memory(structure: AbstractStructure, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(3, *structure.shape)
    whole = k_best(structure, scores, 5)
    monkeypatch.setattr(_scores, "MAX_NUMBERS", 1)
    assert k_best(structure, scores, 5).codes.equal(whole.codes)


def test_many_more_than_there_are() -> None:
    """Lists are no longer than there are structures."""
    for structure in (Sequence(2, 2), Bits(3), Choice(4), Matching(2, 2), DependencyTree(2)):
        found = k_best(structure, torch.randn(structure.shape), 10**6)
        assert (found.value > -torch.inf).sum() <= 8


def test_large_structures_have_distinct_members_in_order() -> None:
    for structure in (
        Sequence(50, 10),
        DependencyTree(20),
        DependencyTree(20, projective=True),
        Matching(15, 20),
        Bits(100),
    ):
        found = k_best(structure, torch.randn(2, *structure.shape), 20)
        assert (found.value.diff(dim=1) <= 0).all()
        for codes in found.codes:
            assert structure.is_valid(codes, None).all()
            assert len(codes.unique(dim=0)) == 20


def test_what_has_no_k_best() -> None:
    with pytest.raises(NotImplementedError, match="custom has no algorithm for its k best"):
        k_best(Custom((3,), lambda scores: scores), torch.zeros(3), 1)


def test_wrong_arguments() -> None:
    scores = torch.zeros(4)
    with pytest.raises(TypeError, match="`structure` must be a structure"):
        k_best(_gibbs, scores, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`k` must be at least 1, got 0"):
        k_best(Bits(4), scores, 0)
    with pytest.raises(TypeError, match="`k` must be an int, got float"):
        k_best(Choice(4), scores, 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`scores` must have shape"):
        k_best(Bits(3), scores, 1)


@pytest.mark.parametrize("structure", [Bits(3), Choice(3), Sequence(3, 2), Matching(3, 3)])
def test_more_than_memory_has_room_for(structure: AbstractStructure) -> None:
    message = r"`k` must be at most \d+ for 2 instances of .*, since .* got 1000000000000\. The "
    with pytest.raises(ValueError, match=message):
        k_best(structure, torch.zeros(2, *structure.shape), 10**12)
    with pytest.raises(ValueError, match=r"got 1000000000000\.$"):
        k_best(Bits(60), torch.zeros(60), 10**12)
