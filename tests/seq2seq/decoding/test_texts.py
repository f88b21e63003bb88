"""Searches speak of texts, however many sequences of tokens spell one: by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import FIRST, Mean, Pieces, Rounded, Table, check_claims, inputs, spelling

from fenchel.seq2seq import Characters, Inflection, ModelConfig, Seq2Seq, Subwords, Words, search
from fenchel.seq2seq.data._vocabulary import EOS, PAD, UNKNOWN

METHODS = ("greedy", "beam", "exhaustive")
PIECES = ["a", "b", "aa", "ab", "ba", ""]


class Spelled(Table):
    """A table whose tokens are pieces of texts."""

    def __init__(self, seed: int, vocabulary: Pieces, **options) -> None:
        super().__init__(seed, classes=vocabulary.size, **options)
        self.source = self.target = vocabulary


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pieces=st.integers(1, 6),
    monotone=st.booleans(),
    depth=st.integers(1, 5),
    support=st.integers(1, 4),
    method=st.sampled_from(METHODS),
    beam=st.integers(1, 6),
    nbest=st.none() | st.integers(1, 8),
    max_length=st.integers(1, 7),
    limit=st.integers(1, 60),
    items=st.lists(st.integers(0, 99), min_size=1, max_size=3),
    models=st.integers(1, 2),
    min_finished=st.integers(1, 12),
    max_prefixes=st.integers(1, 6),
)
def test_every_claim_is_true(
    seed, pieces, monotone, depth, support, method, beam, nbest, max_length, limit, items, models,
    min_finished, max_prefixes,
):  # fmt: skip
    vocabulary = Pieces(PIECES[-pieces:], monotone)
    tables = [Spelled(seed + k, vocabulary, depth=depth, support=support) for k in range(models)]
    options = {"method": method, "beam": beam, "nbest": nbest, "limit": limit}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fenchel.seq2seq.decoding._texts.MIN_FINISHED", min_finished)
        patch.setattr("fenchel.seq2seq.decoding._pruned.MAX_PREFIXES", max_prefixes)
        results = search(tables, *inputs(*items), max_length=max_length, **options)
    most = {"greedy": 1, "beam": nbest or beam, "exhaustive": nbest or limit}[method]
    for item, result in zip(items, results, strict=True):
        check_claims(result, Mean(tables).everything(item), max_length, vocabulary)
        assert 1 <= len(result.hypotheses) <= most


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), support=st.integers(1, 4), models=st.integers(1, 2))
def test_exhaustive_search_finds_every_text_whole(seed, support, models):
    vocabulary = Pieces(PIECES)
    tables = [Spelled(seed + place, vocabulary, support=support) for place in range(models)]
    (result,) = search(tables, *inputs(1), method="exhaustive", limit=5000)
    found = {vocabulary.decode(each.tokens): each.probability for each in result.hypotheses}
    assert found == pytest.approx(spelling(Mean(tables).everything(1), vocabulary))
    assert result.complete


class Marched(Table):
    """The most probable sequence spells a text that is not the most probable one."""

    target = Pieces(["mark", "march", "mar", "ched", "ed", "c", "hed"])
    rows = {  # noqa: RUF012
        (): {4: 0.25, 5: 0.25, 6: 0.5},
        (4,): {7: 1.0},
        (5,): {8: 1.0},
        (6,): {7: 0.25, EOS: 0.25, 9: 0.5},
        (6, 9): {10: 0.25, 9: 0.75},
    }

    def row(self, item, prefix):
        row = [0.0] * self.target.size
        for token, p in self.rows.get(prefix, {EOS: 1.0}).items():
            row[token] = p
        return row


def test_sequences_of_one_text_are_one_hypothesis():
    (result,) = search(Marched(0, 11), *inputs(1), attention=True)
    found = [(Marched.target.decode(each.tokens), each.probability) for each in result.hypotheses]
    assert found == [
        ("marched", pytest.approx(0.25 + 0.125 + 0.0625)),
        ("markched", pytest.approx(0.25)),
        ("marcc", pytest.approx(0.1875)),
        ("mar", pytest.approx(0.125)),
    ]
    assert result.complete
    first = result.hypotheses[0]
    assert [each.tokens for each in (first, *first.others)] == [(5, 8), (6, 7), (6, 9, 10)]
    assert first.attention is not None
    assert [each.attention for each in first.others] == [None, None]
    assert result.hypotheses[0].probabilities == (0.25, 1.0, 1.0)


def test_what_was_cut_may_belong_to_a_text_that_was_found():
    (result,) = search(Marched(0, 11), *inputs(1), beam=2)
    check_claims(result, Marched(0, 11).everything(1), 100, Marched.target)
    assert not result.complete
    (greedy,) = search(Marched(0, 11), *inputs(1), method="greedy")
    check_claims(greedy, Marched(0, 11).everything(1), 100, Marched.target)
    assert not greedy.exact


def test_a_prefix_of_another_text_does_not_count_against_one():
    tables = [Spelled(seed, Pieces(PIECES)) for seed in range(80)]
    blind = [Spelled(seed, Pieces(PIECES, is_prefix_monotone=False)) for seed in range(80)]

    def exact(each):
        return search(each, *inputs(1), beam=2)[0].exact

    seen, unseen = sum(map(exact, tables)), sum(map(exact, blind))
    best = 0
    for table in tables:
        truth = spelling(table.everything(1), table.target)
        (result,) = search(table, *inputs(1), beam=2)
        first = truth[table.target.decode(result.hypotheses[0].tokens)]
        best += first == pytest.approx(max(truth.values()))
    assert unseen < seen <= best
    assert seen > 0.8 * best


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 3), support=st.integers(1, 4))
def test_a_certificate_is_true_in_any_batch(seed, beam, support):
    vocabulary = Pieces(PIECES)
    table = Spelled(seed, vocabulary, depth=3, support=support)
    (result,) = search(table, *inputs(1), beam=beam, nbest=100)
    if result.exact and not result.complete:
        other = Rounded(seed, classes=vocabulary.size, depth=3, support=support)
        truth = spelling(other.everything(1), vocabulary)
        assert truth[vocabulary.decode(result.hypotheses[0].tokens)] >= max(truth.values())


def test_texts_of_characters_are_certified_as_sequences_are():
    """The search that knows only of texts claims no less where each has one sequence."""
    letters = Pieces(list("abcd"))
    exact = [[], []]
    for seed in range(60):
        for found, table in zip(exact, (Table(seed), Spelled(seed, letters)), strict=True):
            found.append(search(table, *inputs(1), beam=2)[0].exact)
    assert sum(exact[1]) >= 0.97 * sum(exact[0]) > 40


def test_a_table_that_pads_is_ambiguous():
    class Padding(Table):
        target = Characters("abcd")

        def row(self, item, prefix):
            row = [0.0] * self.classes
            if len(prefix) < 2:
                row[PAD], row[FIRST] = 0.5, 0.5
            else:
                row[EOS] = 1.0
            return row

    (result,) = search(Padding(0), *inputs(1))
    assert [Characters("abcd").decode(each.tokens) for each in result.hypotheses] == ["a", "", "aa"]
    assert [each.probability for each in result.hypotheses] == [0.5, 0.25, 0.25]


def test_unfinished_prefixes_are_texts_too():
    class Endless(Marched):
        def row(self, item, prefix):
            row = super().row(item, prefix)
            row[6], row[EOS] = row[6] + row[EOS], 0.0
            return row

    (result,) = search(Endless(0, 11), *inputs(1), max_length=2)
    assert result.limited
    assert not any(each.finished for each in result.hypotheses)
    texts = [Marched.target.decode(each.tokens) for each in result.hypotheses]
    assert len(set(texts)) == len(texts)
    assert result.hypotheses[0].probability == pytest.approx(0.25 + 0.125)


def test_subwords_are_certified_by_text():
    texts = ["marched off to the market", "the march and the mark", "mar mar march ched"] * 20
    words = Subwords.build(texts, 40)
    config = ModelConfig(embedding=8, hidden=8, layers=1)
    torch.manual_seed(0)
    model = Seq2Seq(config, words, words)
    (result,) = search(model, *inputs(1), method="exhaustive", limit=200, max_length=3)
    texts = [words.decode(each.tokens) for each in result.hypotheses]
    assert len(set(texts)) == len(texts)
    for each in result.hypotheses:
        assert {words.decode(other.tokens) for other in each.others} <= {words.decode(each.tokens)}


@pytest.mark.parametrize(
    ("vocabulary", "is_unambiguous"),
    [
        (Characters("abc"), True),
        (Characters(["a", "b", "ab"]), False),
        (Characters("aba"), False),
        (Characters(["a", UNKNOWN]), False),
        (Words(["ja", "nein"]), True),
        (Words(["ja", "ja nein", "nein"]), False),
        (Words(["", "ja"]), False),
        (Inflection(["english"], ["V"], ["a"]), False),
        (Pieces(["a"]), False),
    ],
)
def test_what_is_spelled_in_one_way_only(vocabulary, is_unambiguous):
    assert vocabulary.is_unambiguous is is_unambiguous


def test_subwords_are_prefix_monotone_and_ambiguous():
    words = Subwords.build(["marched off to the market"] * 9, 30)
    assert (words.is_unambiguous, words.is_prefix_monotone) == (False, True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        ids = torch.randint(3, words.size, (6,), generator=generator).tolist()
        whole = words.decode(ids)
        assert all(whole.startswith(words.decode(ids[:size])) for size in range(6))
