"""Every claim of a search is checked by brute force, on models that can be enumerated."""

from __future__ import annotations

import functools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import FIRST, Mean, Rounded, Table, check_claims, inputs

from fenchel.seq2seq import ModelConfig, Seq2Seq, Words, search
from fenchel.seq2seq.data._batches import padded
from fenchel.seq2seq.data._vocabulary import BOS, EOS
from fenchel.seq2seq.decoding import _beam
from fenchel.seq2seq.models._ensemble import ROUNDING

METHODS = ("greedy", "beam", "exhaustive")


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(5, 8),
    depth=st.integers(1, 5),
    support=st.integers(1, 4),
    method=st.sampled_from(METHODS),
    beam=st.integers(1, 6),
    nbest=st.none() | st.integers(1, 8),
    max_length=st.integers(1, 7),
    limit=st.integers(1, 60),
    items=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    models=st.integers(1, 3),
)
def test_every_claim_is_true(
    seed, classes, depth, support, method, beam, nbest, max_length, limit, items, models
):
    tables = [Table(seed + place, classes, depth, support) for place in range(models)]
    options = {"method": method, "beam": beam, "nbest": nbest, "limit": limit}
    results = search(tables, *inputs(*items), max_length=max_length, **options)
    assert len(results) == len(items)
    most = {"greedy": 1, "beam": nbest or beam, "exhaustive": nbest or limit}[method]
    for item, result in zip(items, results, strict=True):
        check_claims(result, Mean(tables).everything(item), max_length)
        assert 1 <= len(result.hypotheses) <= most


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), support=st.integers(1, 4), models=st.integers(1, 2))
def test_exhaustive_search_finds_everything(seed, support, models):
    tables = [Table(seed + place, support=support) for place in range(models)]
    (result,) = search(tables, *inputs(1), method="exhaustive", limit=5000)
    assert result.complete
    assert {each.tokens for each in result.hypotheses} == Mean(tables).everything(1).keys()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), support=st.integers(1, 3), beam=st.integers(1, 8))
def test_a_beam_that_prunes_nothing_is_certified(seed, support, beam):
    table = Table(seed, support=support)
    truth = table.everything(1)
    widths = [len({tokens[:k] for tokens in truth if len(tokens) >= k}) for k in range(1, 5)]
    (result,) = search(table, *inputs(1), beam=beam, nbest=len(truth))
    assert result.complete == (max(widths) <= beam)
    if max(widths) <= beam:
        assert result.exact


def test_the_bound_certifies_more_than_never_cutting():
    tables = [Table(seed, support=3) for seed in range(100)]
    results = [search(table, *inputs(1), beam=2)[0] for table in tables]
    complete = sum(result.complete for result in results)
    exact = sum(result.exact for result in results)
    best = sum(
        result.hypotheses[0].probability == pytest.approx(max(table.everything(1).values()))
        for result, table in zip(results, tables, strict=True)
    )
    assert 0 < complete < exact <= best
    assert exact > 0.8 * best


def test_greedy_follows_the_most_probable_token():
    for seed in range(20):
        table = Table(seed)
        (result,) = search(table, *inputs(3), method="greedy")
        prefix: tuple[int, ...] = ()
        while (token := max(range(8), key=table.row(3, prefix).__getitem__)) != EOS:
            prefix = (*prefix, token)
        assert [each.tokens for each in result.hypotheses] == [prefix]


def test_an_input_is_searched_as_if_it_were_alone():
    table = Table(0)
    items = [4, 9, 2, 4]
    together = search(table, *inputs(*items), beam=3)
    for item, result in zip(items, together, strict=True):
        assert search(table, *inputs(item), beam=3) == [result]


def test_only_live_hypotheses_are_stepped():
    table = Table(0, support=1)  # one output for each input
    search(table, *inputs(*range(50)), beam=5)
    outputs = [next(iter(table.everything(item))) for item in range(50)]
    longest = max(map(len, outputs))
    expected = [sum(len(each) >= length for each in outputs) for length in range(longest + 1)]
    assert table.steps == expected


class Loop(Table):
    """One token, then with probability `p` another and so on: an infinite support."""

    def __init__(self, p: float) -> None:
        super().__init__(0, depth=None)
        self.p = p

    def row(self, item, prefix):
        row = [0.0] * self.classes
        row[EOS], row[FIRST] = (1 - self.p, self.p) if prefix else (0.0, 1.0)
        return row


@pytest.mark.parametrize("method", ["beam", "exhaustive"])
def test_a_length_limit_that_bites_leaves_something_out(method):
    (result,) = search(Loop(0.25), *inputs(1), max_length=6, method=method, nbest=50)
    assert [len(each.tokens) for each in result.hypotheses] == [1, 2, 3, 4, 5, 6]
    assert result.mass == pytest.approx(1 - 0.25**6)
    assert result.bound == pytest.approx(0.25**6)
    assert (result.exact, result.complete, result.limited) == (True, False, True)


def test_a_length_limit_beyond_what_can_matter_does_not_bite():
    (result,) = search(Loop(0.25), *inputs(1), max_length=6, nbest=2)
    assert [each.probability for each in result.hypotheses] == [0.75, pytest.approx(0.1875)]
    assert (result.exact, result.complete, result.limited) == (True, False, False)


def test_where_nothing_finishes_the_prefix_is_returned():
    (result,) = search(Loop(1.0), *inputs(1), max_length=4)
    (only,) = result.hypotheses
    assert (only.tokens, only.finished, only.probabilities) == ((FIRST,) * 4, False, (1.0,) * 4)
    assert (result.mass, result.bound, result.limited) == (0, 1, True)
    assert not result.exact
    assert not result.complete


def test_a_limit_on_hypotheses_is_reported():
    table = Table(1, support=4)
    (all_of_them,) = search(table, *inputs(1), method="exhaustive")
    (some,) = search(table, *inputs(1), method="exhaustive", limit=3)
    assert len(all_of_them.hypotheses) > 3 == len(some.hypotheses)
    assert not some.complete
    assert some.bound > 0


def test_states_of_many_hypotheses_are_stepped_in_chunks(monkeypatch):
    whole = search(Table(5, support=4), *inputs(1, 2), method="exhaustive", attention=True)
    monkeypatch.setattr("fenchel.seq2seq.decoding._beam.CHUNK", 7)
    table = Table(5, support=4)
    assert search(table, *inputs(1, 2), method="exhaustive", attention=True) == whole
    assert max(table.steps) == 7


def test_an_exhaustive_search_takes_a_few_inputs_at_a_time():
    table, alone = Table(2), Table(2)
    results = search(table, *inputs(*range(9)), method="exhaustive", limit=4096)
    for item in range(9):
        assert search(alone, *inputs(item), method="exhaustive", limit=4096) == [results[item]]
    assert table.steps[0] == 2  # of nine
    assert max(table.steps) <= 8192


def test_a_beam_of_any_width_holds_a_bounded_number_of_states():
    table, narrow = Table(2), Table(2)
    results = search(table, *inputs(*range(9)), beam=4096)
    assert table.steps[0] == 2  # of nine
    assert search(narrow, *inputs(*range(9)), beam=60, nbest=4096) == results


def test_a_wide_search_of_a_large_vocabulary_holds_no_more_than_it_is_asked_for(monkeypatch):
    """Rows of many tokens are neither sorted nor kept, and nothing is lost by that."""
    kept, prune = [], _beam._prune

    def counted(found, *rest):
        kept.append(len(found))
        return prune(found, *rest)

    monkeypatch.setattr(_beam, "_prune", counted)

    class Wide(Table):
        @functools.cache  # noqa: B019
        def row(self, item, prefix):
            draw = random.Random(repr(prefix))
            p = [draw.random() ** 8 for _ in range(self.classes)]
            p[:2] = 0.0, 0.0
            total = sum(p)
            return [each / total for each in p]

    table = Wide(0, classes=3000)
    (result,) = search(table, *inputs(1), method="exhaustive", limit=100, max_length=2)
    assert max(kept) < 30 * 100
    first = table.row(1, ())
    best = sorted(range(4, 3000), key=lambda token: -first[token])[:100]
    second = [(first[a] * q, (a, b)) for a in best for b, q in enumerate(table.row(1, (a,)))]
    finished = [(p, y[:1]) for p, y in second if y[1] == EOS]
    live = sorted([(p, y) for p, y in second if y[1] != EOS], reverse=True)[:100]
    finished += [(p * table.row(1, y)[EOS], y) for p, y in live] + [(first[EOS], ())]
    expected = [y for _, y in sorted(finished, reverse=True)[:100]]
    assert [each.tokens for each in result.hypotheses] == expected


def test_ties_are_not_certified_but_found():
    class Tie(Table):
        def row(self, item, prefix):
            row = [0.0] * self.classes
            if prefix:
                row[EOS] = 1.0
            else:
                row[FIRST] = row[FIRST + 1] = 0.5
            return row

    (result,) = search(Tie(0), *inputs(1), beam=1)
    assert result.hypotheses[0].probability == 0.5
    assert result.bound == 0.5
    assert not result.exact  # the margin for rounding
    (result,) = search(Tie(0), *inputs(1), beam=2)
    assert result.complete


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 3), support=st.integers(1, 4))
def test_a_certificate_is_true_in_any_batch(seed, beam, support):
    table = Table(seed, depth=3, support=support)
    (result,) = search(table, *inputs(1), beam=beam, nbest=1)
    if result.exact and not result.complete:
        truth = Rounded(seed, depth=3, support=support).everything(1)
        assert truth[result.hypotheses[0].tokens] >= max(truth.values())


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
@pytest.mark.parametrize("mapping", ["softmax", "entmax", "sparsemax"])
def test_rows_differ_between_batches_by_less_than_rounding_may(architecture, mapping):
    torch.manual_seed(0)
    words = Words([f"w{place}" for place in range(40)])
    config = ModelConfig(
        architecture=architecture, hidden=32, embedding=32, attention=mapping, output=mapping
    )
    model = Seq2Seq(config, words, words).eval()
    draw = random.Random(0)
    sources = [draw.choices(range(4, 44), k=draw.randint(2, 20)) for _ in range(5)]
    target = torch.tensor([[BOS, *draw.choices(range(4, 44), k=16)] for _ in sources])

    def rows(places):
        chosen = [sources[place] for place in places]
        state = model.start(padded(chosen), torch.tensor([len(each) for each in chosen]))
        steps = []
        for token in target[list(places)].t():
            scores, _, state = model.step(state, token)
            steps.append(model.probabilities(scores).double())
        return torch.stack(steps, 1)

    with torch.no_grad():
        together = rows(range(5))
        alone = torch.cat([rows([place]) for place in range(5)])
    off = (together - alone).abs().sum(-1).max() / 2
    assert off < ROUNDING * torch.finfo(torch.float32).eps / 8


def test_half_precision_certifies_only_what_is_complete():
    class Half(Table):
        def step(self, state, tokens):
            scores, attention, state = super().step(state, tokens)
            return scores.half(), attention, state

        def probabilities(self, scores):
            return scores.float()

    results = [search(Half(seed), *inputs(1), beam=2)[0] for seed in range(30)]
    assert {result.exact == result.complete for result in results} == {True}
    assert len({result.complete for result in results}) == 2


def test_tiny_probabilities_do_not_vanish():
    class Tiny(Table):
        def row(self, item, prefix):
            row = [0.0] * self.classes
            row[EOS if len(prefix) == 30 else FIRST], row[FIRST + 1] = 1e-30, 1.0
            return row

    (result,) = search(Tiny(0), *inputs(1), beam=1, max_length=30)
    assert result.limited
    (result,) = search([Tiny(0), Tiny(0)], *inputs(1), method="exhaustive", limit=2, max_length=3)
    assert not result.complete
    assert result.bound == 1


def test_attention_is_that_of_each_token_cut_to_the_input():
    table = Table(2)
    source, _ = inputs(1, 2)
    results = search([table, table], source, torch.tensor([3, 2]), attention=True)
    for size, result in zip((3, 2), results, strict=True):
        for each in result.hypotheses:
            steps = torch.arange(len(each.tokens) + 1.0)
            expected = steps[:, None, None].expand(-1, 2, size)
            torch.testing.assert_close(each.attention, expected)


def test_attention_comes_only_when_asked():
    assert search(Table(2), *inputs(1))[0].hypotheses[0].attention is None


def test_the_mode_of_a_module_is_restored():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = Table(0)

        def start(self, source, lengths):
            return self.table.start(source, lengths)

        def step(self, state, tokens):
            assert not self.training
            assert not torch.is_grad_enabled()
            return self.table.step(state, tokens)

        def probabilities(self, scores):
            return scores

    module = Module()
    search(module, *inputs(1))
    assert module.training


def test_no_inputs():
    assert search(Table(0), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0).long()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([math.nan] * 8, "got NaN"),
        ([0.5] * 8, "got entries from 0.5 that sum to 4"),
        ([1.5, -0.5, 0, 0, 0, 0, 0, 0], "got entries from -0.5 that sum to 1"),
        ([0.0] * 8, "got entries from 0 that sum to 0"),
    ],
)
def test_what_is_not_a_distribution(bad, message):
    table = Table(0)
    table.row = lambda item, prefix: bad
    with pytest.raises(ValueError, match=f"`probabilities` must be nonnegative .* {message}"):
        search(table, *inputs(1))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"method": "fast"}, ValueError, "`method` must be one of beam, greedy, exhaustive"),
        ({"beam": 0}, ValueError, "`beam` must be at least 1, got 0"),
        ({"beam": 2.0}, TypeError, "`beam` must be an int, got float"),
        ({"nbest": 0}, ValueError, "`nbest` must be at least 1"),
        ({"max_length": True}, TypeError, "`max_length` must be an int, got bool"),
        ({"limit": -1}, ValueError, "`limit` must be at least 1, got -1"),
        ({"limit": 10**9}, ValueError, "`limit` must be at most 8192, got 1000000000; with fewer"),
        ({"beam": 10**11}, ValueError, "`beam` must be at most 8192, got 100000000000; with"),
        ({"nbest": 8193}, ValueError, "`nbest` must be at most 8192, got 8193; with fewer, a cert"),
        ({"max_length": 10**6}, ValueError, "`max_length` must be at most 10000, got 1000000; an"),
        ({"models": []}, ValueError, "`models` must hold at least one model"),
        ({"models": [Table(0), 3]}, TypeError, "with `start`, `step` and `probabilities`; got int"),
        ({"models": [Table(0), Table(0, 9)]}, ValueError, r"target vocabulary, got sizes \[8, 9\]"),
        ({"source": [[1]]}, TypeError, "`source` must be a torch.Tensor, got list"),
        ({"source": torch.ones(1, 3)}, TypeError, "`source` must be int64, got torch.float32"),
        ({"lengths": torch.ones(2).long()}, ValueError, r"got \(1, 3\) and \(2,\)"),
    ],
)
def test_wrong_arguments(change, kind, message):
    source, lengths = inputs(1)
    arguments = {"models": Table(0), "source": source, "lengths": lengths, **change}
    with pytest.raises(kind, match=message):
        search(**arguments)
