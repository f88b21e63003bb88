"""What a search claims under constraints and length normalization, by brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import FIRST, Mean, Pieces, Rounded, Table, check_allowed_claims, inputs, spelling

from fenchel.seq2seq import (
    Constraint,
    search,
)
from fenchel.seq2seq.data._vocabulary import EOS

METHODS = ("greedy", "beam", "exhaustive")
PIECES = ["a", "b", "aa", "ab", "ba", ""]


class Spelled(Table):
    """A table whose tokens are pieces of texts."""

    def __init__(self, seed: int, vocabulary: Pieces, **options) -> None:
        super().__init__(seed, classes=vocabulary.size, **options)
        self.source = self.target = vocabulary


def allowed_of(truth, constraint, vocabulary=None):
    """The outputs that a constraint allows, by their definition."""

    def ids(tokens):
        if isinstance(tokens, str):
            return set(vocabulary.encode(tokens))
        return {vocabulary.pieces.index(t) if isinstance(t, str) else t for t in tokens}

    def is_allowed(tokens):
        prefix = constraint.prefix
        if isinstance(prefix, str):
            if prefix and not vocabulary.decode(tokens).startswith(prefix):
                return False
        elif tokens[: len(prefix)] != tuple(prefix):
            return False
        if constraint.allowed is not None and not set(tokens) <= ids(constraint.allowed):
            return False
        return not set(tokens) & ids(constraint.forbidden)

    return {tokens: p for tokens, p in truth.items() if is_allowed(tokens)}


ID_CONSTRAINTS = st.builds(
    Constraint,
    prefix=st.lists(st.integers(FIRST, 7), max_size=3).map(tuple),
    allowed=st.none() | st.lists(st.integers(FIRST, 7), max_size=4, unique=True),
    forbidden=st.lists(st.integers(FIRST, 7), max_size=2, unique=True),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 5),
    support=st.integers(1, 4),
    method=st.sampled_from(METHODS),
    beam=st.integers(1, 6),
    nbest=st.none() | st.integers(1, 8),
    max_length=st.integers(1, 7),
    limit=st.integers(1, 60),
    items=st.lists(
        st.tuples(st.integers(0, 99), st.none() | ID_CONSTRAINTS), min_size=1, max_size=4
    ),
    models=st.integers(1, 2),
    power=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_every_claim_about_sequences_is_true(
    seed, depth, support, method, beam, nbest, max_length, limit, items, models, power
):
    power = 0.0 if method == "greedy" else power
    tables = [Table(seed + k, depth=depth, support=support) for k in range(models)]
    options = {"method": method, "beam": beam, "nbest": nbest, "limit": limit}
    results = search(
        tables,
        *inputs(*(item for item, _ in items)),
        max_length=max_length,
        constraints=[constraint for _, constraint in items],
        length_power=power,
        **options,
    )
    for (item, constraint), result in zip(items, results, strict=True):
        truth = allowed_of(Mean(tables).everything(item), constraint or Constraint())
        check_allowed_claims(result, truth, max_length, power=power)


TEXT_CONSTRAINTS = st.builds(
    Constraint,
    prefix=st.text("ab", max_size=4),
    allowed=st.none() | st.lists(st.sampled_from(["a", "b", "aa", "ab"]), max_size=4),
    forbidden=st.sampled_from(["", "a", ["ba"], ["ab", "b"]]),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    monotone=st.booleans(),
    depth=st.integers(1, 5),
    support=st.integers(1, 4),
    method=st.sampled_from(METHODS),
    beam=st.integers(1, 6),
    nbest=st.none() | st.integers(1, 8),
    max_length=st.integers(1, 7),
    constraint=TEXT_CONSTRAINTS,
    power=st.sampled_from([0.0, 1.0]),
)
def test_every_claim_about_texts_is_true(
    seed, monotone, depth, support, method, beam, nbest, max_length, constraint, power
):
    power = 0.0 if method == "greedy" else power
    vocabulary = Pieces(PIECES, monotone)
    table = Spelled(seed, vocabulary, depth=depth, support=support)
    (result,) = search(
        table,
        *inputs(1),
        method=method,
        beam=beam,
        nbest=nbest,
        max_length=max_length,
        constraints=constraint,
        length_power=power,
    )
    if not monotone:  # the text stands for its own tokens
        constraint = Constraint(
            vocabulary.encode(constraint.prefix), constraint.allowed, constraint.forbidden
        )
    truth = allowed_of(table.everything(1), constraint, vocabulary)
    check_allowed_claims(result, truth, max_length, vocabulary, power)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), constraint=TEXT_CONSTRAINTS)
def test_an_exhaustive_search_finds_all_that_is_allowed(seed, constraint):
    vocabulary = Pieces(PIECES)
    table = Spelled(seed, vocabulary, support=4)
    options = {"method": "exhaustive", "limit": 5000, "constraints": constraint}
    (result,) = search(table, *inputs(1), **options)
    truth = spelling(allowed_of(table.everything(1), constraint, vocabulary), vocabulary)
    found = {vocabulary.decode(each.tokens): each.probability for each in result.hypotheses}
    assert result.complete
    assert found == pytest.approx(truth)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.sampled_from([0.5, 1.0, 2.0]), limit=st.integers(1, 40))
def test_the_best_score_is_certified_only_if_it_is_the_best(seed, power, limit):
    table = Table(seed, support=4)
    options = {"method": "exhaustive", "limit": limit, "max_length": 4}
    (result,) = search(table, *inputs(1), length_power=power, **options)
    truth = {y: math.log(p) / (len(y) + 1) ** power for y, p in table.everything(1).items()}
    if limit == 40 and result.complete:
        ranked = sorted(truth.values(), reverse=True)
        assert [each.score(power) for each in result.hypotheses] == pytest.approx(ranked)
    if result.exact:
        assert result.hypotheses[0].score(power) == pytest.approx(max(truth.values()))


def test_length_normalization_can_be_certified_where_something_was_pruned():
    results = [
        search(Table(seed), *inputs(1), beam=2, max_length=4, length_power=0.5)[0]
        for seed in range(60)
    ]
    assert any(result.exact and not result.complete for result in results)
    assert any(not result.exact for result in results)


def test_length_normalization_prefers_longer_outputs():
    class Either(Table):
        """The end with 0.4, or four certain tokens after one of 0.3."""

        def row(self, item, prefix):
            row = [0.0] * self.classes
            if not prefix:
                row[EOS], row[FIRST], row[FIRST + 1] = 0.4, 0.3, 0.3
            else:
                row[EOS if len(prefix) == 5 else prefix[0]] = 1.0
            return row

    (plain,) = search(Either(0), *inputs(1))
    (normal,) = search(Either(0), *inputs(1), length_power=1.0)
    assert plain.hypotheses[0].tokens == ()
    assert normal.hypotheses[0].tokens == (FIRST,) * 5
    assert normal.hypotheses[0].probability == pytest.approx(0.3)
    assert normal.hypotheses[0].score(1.0) == pytest.approx(math.log(0.3) / 6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 3), constraint=ID_CONSTRAINTS)
def test_a_certificate_is_true_in_any_batch(seed, beam, constraint):
    table = Table(seed, depth=3)
    (result,) = search(table, *inputs(1), beam=beam, nbest=1, constraints=constraint)
    if result.exact and not result.complete:
        truth = allowed_of(Rounded(seed, depth=3).everything(1), constraint)
        assert truth[result.hypotheses[0].tokens] >= max(truth.values())


def test_a_prefix_of_little_probability_does_not_prevent_a_certificate():
    """What rounding may add behind the prefix is in proportion to its own probability."""

    class Rare(Table):
        def row(self, item, prefix):
            row = [0.0] * self.classes
            if len(prefix) < 2:
                row[FIRST], row[FIRST + 1] = 0.02, 0.98
            elif len(prefix) == 2:
                row[FIRST], row[FIRST + 1] = 0.875, 0.125
            else:
                row[EOS] = 1.0
            return row

    (result,) = search(Rare(0), *inputs(1), beam=1, constraints=Constraint(prefix=[FIRST] * 2))
    assert result.hypotheses[0].probability == pytest.approx(0.02 * 0.02 * 0.875)
    assert (result.exact, result.complete) == (True, False)


def test_tokens_that_were_not_even_sorted_count_as_pruned():
    class Many(Spelled):
        """One token for "a", fourteen that all spell "x", and one for "b"."""

        def row(self, item, prefix):
            row = [0.0] * self.classes
            if prefix:
                row[EOS] = 1.0
            else:
                row[FIRST], row[FIRST + 1] = 0.3, 0.1
                row[FIRST + 2 :] = [(30 - k) * 0.6 / 329 for k in range(14)]
            return row

    table = Many(0, Pieces(["a", "b", *["x"] * 14]))
    constraint = Constraint(forbidden=["b"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fenchel.seq2seq.decoding._beam.MIN_SORTED", 1)
        (result,) = search(table, *inputs(1), beam=1, constraints=constraint)
    assert result.hypotheses[0].tokens == (FIRST,)
    assert not result.exact
    assert result.bound >= 0.6  # that of "x"


def test_a_token_of_probability_zero_may_have_some_in_another_batch():
    class Rare(Table):
        def row(self, item, prefix):
            row = [0.0] * self.classes
            if len(prefix) < 2:
                row[FIRST], row[FIRST + 2] = 0.02, 0.98
            elif len(prefix) == 2:
                row[FIRST], row[FIRST + 1] = 0.875, 0.125
            else:
                row[EOS] = 1.0
            return row

    only = Constraint(allowed=[FIRST, FIRST + 1])  # the second one is possible at first, too
    (result,) = search(Rare(0), *inputs(1), beam=1, constraints=only)
    assert result.hypotheses[0].probability == pytest.approx(0.02 * 0.02 * 0.875)
    assert (result.exact, result.complete) == (False, False)


def test_a_normalized_score_of_texts_is_certified_only_if_nothing_was_pruned():
    class Chain(Spelled):
        """Either "a", or with a smaller probability five times "b", which has a better score."""

        def row(self, item, prefix):
            row = [0.0] * self.classes
            if not prefix:
                row[FIRST], row[FIRST + 1] = 0.6, 0.4
            else:
                row[EOS if len(prefix) == 5 or prefix[0] == FIRST else FIRST + 1] = 1.0
            return row

    table = Chain(0, Pieces(["a", "b"]))
    (narrow,) = search(table, *inputs(1), beam=1, length_power=1.0, max_length=6)
    (wide,) = search(table, *inputs(1), beam=2, length_power=1.0, max_length=6)
    assert (narrow.hypotheses[0].tokens, narrow.exact) == ((FIRST,), False)
    assert (wide.hypotheses[0].tokens, wide.exact) == ((FIRST + 1,) * 5, True)
