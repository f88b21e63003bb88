"""Samples have the model's distribution, and depend on their input, number and seed alone."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from tables import FIRST, Mean, Table, inputs

from fenchel.seq2seq import Characters, Constraint, Hypothesis, ModelConfig, Seq2Seq, sample
from fenchel.seq2seq.data._vocabulary import BOS, EOS
from fenchel.seq2seq.decoding._sampling import sample_sequences


def draw(models, *items: int, constraints=None, **options) -> list[list[Hypothesis]]:
    defaults = {"samples": 100, "temperature": 1.0, "seed": 0, "max_length": 100}
    constraints = constraints or [None] * len(items)
    return sample_sequences(models, *inputs(*items), constraints=constraints, **defaults | options)


def check_frequencies(found: list[Hypothesis], truth: dict[tuple[int, ...], float]) -> None:
    """Pearson's statistic is not more than five standard deviations above its mean."""
    counts = Counter(each.tokens for each in found)
    assert counts.keys() <= truth.keys()
    total = len(found)
    statistic = sum((counts[y] - total * p) ** 2 / (total * p) for y, p in truth.items())
    degrees = len(truth) - 1
    spread = sum(1 / (total * p) for p in truth.values())  # of the rare outputs
    assert statistic <= degrees + 5 * math.sqrt(2 * degrees + spread)


@pytest.mark.parametrize("models", [1, 2])
def test_samples_have_the_distribution_of_the_model(models):
    tables = [Table(seed, depth=3, support=3) for seed in range(models)]
    (found,) = draw(tables, 1, samples=4000)
    truth = Mean(tables).everything(1)
    assert len(truth) > 5
    check_frequencies(found, truth)
    for each in found:
        assert each.probability == pytest.approx(truth[each.tokens])
        assert math.prod(each.probabilities) == pytest.approx(truth[each.tokens])
        assert each.finished


def test_a_wrong_distribution_is_noticed():
    (found,) = draw(Table(0, depth=3), 1, samples=4000)
    truth = Table(0, depth=3).everything(1)
    first, second, *_ = sorted(truth, key=lambda y: -truth[y])
    shifted = {**truth, first: truth[first] - 0.05, second: truth[second] + 0.05}
    with pytest.raises(AssertionError):
        check_frequencies(found, shifted)


def test_samples_do_not_depend_on_the_batch(monkeypatch):
    together = draw(Table(3), 4, 9, 2)
    for item, found in zip((4, 9, 2), together, strict=True):
        assert draw(Table(3), item) == [found]
    assert draw(Table(3), 4, samples=7) == [together[0][:7]]
    assert draw(Table(3), 4, seed=1) != [together[0]]
    monkeypatch.setattr("fenchel.seq2seq.decoding._sampling.CHUNK", 3)
    monkeypatch.setattr("fenchel.seq2seq.decoding._sampling.MAX_LIVE", 150)
    assert draw(Table(3), 4, 9, 2) == together


def test_only_different_prefixes_are_stepped():
    table = Table(0, support=1)
    draw(table, 1, samples=500)
    assert set(table.steps) == {1}


def test_a_sample_of_the_largest_length_is_cut_off():
    (found,) = draw(Table(1, depth=None, support=1), 1, samples=3, max_length=4)
    unfinished = [each for each in found if not each.finished]
    assert {len(each.tokens) for each in unfinished} <= {4}
    for each in unfinished:
        assert len(each.probabilities) == 4
        assert each.probability == pytest.approx(math.prod(each.probabilities))


class Trap(Table):
    """Two tokens; after the second one only the token 7, which ends."""

    def row(self, item, prefix):
        row = [0.0] * self.classes
        if not prefix:
            row[FIRST], row[FIRST + 1] = 0.5, 0.5
        elif prefix == (FIRST + 1,):
            row[7] = 1.0
        else:
            row[EOS] = 1.0
        return row


def test_a_sample_that_nothing_allowed_can_continue_is_left_out():
    never = [Constraint(forbidden=[7])]
    (found,) = draw(Trap(0), 1, samples=50, constraints=never)
    assert 10 < len(found) < 40
    assert {each.tokens for each in found} == {(FIRST,)}
    assert draw(Trap(0), 1, constraints=[Constraint(prefix=[FIRST + 1], forbidden=[7])]) == [[]]
    assert draw(Trap(0), 1, constraints=[Constraint(allowed=[])]) == [[]]


def test_samples_given_a_prefix():
    table = Table(0, depth=3, support=3)
    truth = table.everything(1)
    first = max({y[0] for y in truth if y}, key=lambda t: sum(y[:1] == (t,) for y in truth))
    mass = sum(p for y, p in truth.items() if y[:1] == (first,))
    given = {y: p / mass for y, p in truth.items() if y[:1] == (first,)}
    assert len(given) > 2
    (found,) = draw(table, 1, samples=3000, constraints=[Constraint(prefix=[first])])
    check_frequencies(found, given)
    for each in found:  # the model's own probability
        assert each.probability == pytest.approx(truth[each.tokens])


@pytest.mark.parametrize("mapping", ["softmax", "entmax"])
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_the_temperature_divides_the_scores(mapping, temperature):
    torch.manual_seed(0)
    letters = Characters("abc")
    config = ModelConfig(embedding=8, hidden=8, layers=1, output=mapping)
    model = Seq2Seq(config, letters, letters).eval()
    torch.nn.init.normal_(model.output.weight, std=2.0)
    options = {"samples": 20, "temperature": temperature, "max_length": 4}
    (found,) = sample(model, ["cab"], **options)
    source, lengths = torch.tensor([letters.encode("cab")]), torch.tensor([3])
    with torch.no_grad():
        for each in found:
            state, p, last = model.start(source, lengths), 1.0, BOS
            for token in (*each.tokens, EOS) if each.finished else each.tokens:
                scores, _, state = model.step(state, torch.tensor([last]))
                p *= float(model.probabilities(scores / temperature)[0, token])
                last = token
            assert p > 0
            assert each.probability == pytest.approx(p, rel=1e-4)


def test_texts_in_batches():
    torch.manual_seed(0)
    letters = Characters("abc")
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters)
    texts = ["abc", "", "a", "cab", "abc"]
    options = {"samples": 4, "max_length": 6}
    found = sample(model, texts, **options)
    assert [len(each) for each in found] == [4, 0, 4, 4, 4]
    assert found[0] == found[4]
    alone = sample(model, texts, batch_size=1, **options)
    assert [[h.tokens for h in each] for each in alone] == [
        [h.tokens for h in each] for each in found
    ]
    with pytest.raises(TimeoutError):
        sample(model, texts, before_step=_stop)


def _stop() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"samples": 0}, ValueError, "`samples` must be at least 1, got 0"),
        ({"samples": 10**6}, ValueError, "`samples` must be at most 8192, got 1000000; draw more"),
        ({"temperature": 0}, ValueError, "`temperature` must be greater than 0, got 0"),
        ({"temperature": math.inf}, ValueError, "`temperature` must be finite"),
        ({"temperature": "hot"}, TypeError, "`temperature` must be a number, got str"),
        ({"seed": 1.5}, TypeError, "`seed` must be an int, got float"),
    ],
)
def test_wrong_options(options, kind, message):
    letters = Characters("abc")
    model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    with pytest.raises(kind, match=message):
        sample(model, ["a"], **options)
