"""What a search claims under constraints and length normalization, by brute force."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import FIRST, Mean, Pieces, Rounded, Table, check_sequences, inputs, spelling

from fenchel.seq2seq import (
    Characters,
    Constraint,
    ModelConfig,
    Seq2Seq,
    Subwords,
    Words,
    decode,
    search,
)
from fenchel.seq2seq.data._vocabulary import EOS, UNK

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


def check_claims(result, truth, max_length, vocabulary=None, power=0.0):
    """Nothing that a result says about the allowed outputs is false."""
    texts = spelling(truth, vocabulary) if vocabulary else truth

    def read(each):
        return vocabulary.decode(each.tokens) if vocabulary else each.tokens

    finished = [each for each in result.hypotheses if each.finished]
    scores = [each.score(power) for each in finished]
    assert scores == sorted(scores, reverse=True)
    for each in finished:
        check_sequences(each, truth, max_length)
    returned = {read(each) for each in finished}
    others = [p for text, p in texts.items() if text not in returned]
    assert max(others, default=0.0) <= result.bound * (1 + 1e-9)
    if result.complete:
        assert returned == texts.keys()
        assert result.mass == pytest.approx(sum(texts.values()), abs=1e-9)
        assert result.exact
        assert result.bound == 0
    if result.exact and power and texts:
        tokens = {text: [] for text in texts}
        for y, p in truth.items():
            tokens[vocabulary.decode(y) if vocabulary else y].append((p, -len(y)))
        sizes = {text: 1 - max(found)[1] for text, found in tokens.items()}
        best = [
            math.log(p) / sizes[text] ** power
            for text, p in texts.items()
            if sizes[text] <= max_length + 1
        ]
        assert not best or scores[0] >= max(best) - 1e-9
    elif result.exact and texts:
        assert texts[read(finished[0])] >= max(texts.values()) * (1 - 1e-12)
    if result.exact and not texts:
        assert not finished
    if not texts:
        assert not finished
    return finished


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
        check_claims(result, truth, max_length, power=power)


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
    check_claims(result, truth, max_length, vocabulary, power)


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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "constraint",
    [Constraint(prefix="zz"), Constraint(prefix="a", forbidden="ab"), Constraint(prefix="\ufffd")],
)
def test_nothing_is_found_where_nothing_is_allowed(method, constraint):
    letters = Characters("abz")
    torch.manual_seed(0)
    model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters).eval()
    constraint = Constraint(constraint.prefix, allowed="ab", forbidden=constraint.forbidden)
    (result,) = decode(model, ["ab"], method=method, max_length=5, constraints=constraint)
    assert (result.hypotheses, result.mass, result.bound) == ([], 0, 0)
    assert result.certificate == "complete"
    (result,) = decode(
        model, ["ab"], method=method, max_length=3, constraints=Constraint(allowed="")
    )
    assert [each.tokens for each in result.hypotheses] == [()]  # only the end


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_constraints_of_each_input(architecture):
    torch.manual_seed(0)
    words = Words(["the", "then", "cat", "sat"])
    config = ModelConfig(architecture=architecture, embedding=8, hidden=8, layers=1, heads=1)
    model = Seq2Seq(config, words, words).eval()
    constraints = [
        Constraint(prefix="the c"),
        None,
        Constraint(allowed="sat"),
        Constraint(forbidden=["<unk>"]),
    ]
    texts = ["cat sat", "the", "then then then", "sat"]
    results = decode(model, texts, max_length=4, constraints=constraints)
    found = [[words.decode(each.tokens) for each in result.hypotheses] for result in results]
    assert all(text.startswith("the c") for text in found[0])
    assert found[0]
    assert set(" ".join(found[2]).split()) == {"sat"}
    assert UNK not in [token for each in results[3].hypotheses for token in each.tokens]
    for text, constraint, result in zip(texts, constraints, results, strict=True):
        (alone,) = decode(model, [text], max_length=4, constraints=constraint)
        assert [each.tokens for each in alone.hypotheses] == [
            each.tokens for each in result.hypotheses
        ]


def test_a_prefix_of_subwords_may_be_spelled_in_any_way():
    texts = ["marched marching march mark marks"] * 50
    subwords = Subwords.build(texts, 30)
    torch.manual_seed(0)
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), subwords, subwords).eval()
    options = {"method": "exhaustive", "max_length": 3}
    (free,) = decode(model, ["mark"], **options)
    (bound,) = decode(model, ["mark"], constraints=Constraint(prefix="mar"), **options)
    found = {subwords.decode(each.tokens): each for each in bound.hypotheses if each.finished}
    assert found
    assert all(text.startswith("mar") for text in found)
    first = {each.tokens[0] for h in found.values() for each in (h, *h.others)}
    assert len(first) > 1
    for each in free.hypotheses:
        if each.finished and (text := subwords.decode(each.tokens)).startswith("mar"):
            assert found[text].probability >= each.probability * (1 - 1e-6)


@pytest.mark.parametrize(
    ("constraint", "kind", "message"),
    [
        ({"prefix": 3}, TypeError, "`prefix` must be a text or a list of token ids, got int"),
        ({"allowed": 3}, TypeError, "`allowed` must be a text, or a list of tokens"),
        ({"allowed": [1.5]}, TypeError, "`allowed` must be a text, or a list of tokens"),
        ({"forbidden": "x"}, ValueError, "`forbidden` has 'x', which is no token of the vocabular"),
        ({"allowed": ["xy"]}, ValueError, "`allowed` has 'xy', which is no token"),
        ({"forbidden": ["</s>"]}, ValueError, r"must not hold padding, begin or end \(0, 1, 2\)"),
        ({"prefix": [2]}, ValueError, r"`prefix` must not hold padding, begin or end"),
        ({"prefix": [99]}, ValueError, "`prefix` must hold token ids below 7, got 99"),
        ({"allowed": [99]}, ValueError, "`allowed` must hold token ids below 7, got 99"),
    ],
)
def test_wrong_constraints(constraint, kind, message):
    letters = Characters("abc")
    model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    with pytest.raises(kind, match=message):
        decode(model, ["ab"], constraints=Constraint(**constraint))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"constraints": "ab"}, TypeError, "`constraints` must be a Constraint, or a list"),
        ({"constraints": ["ab"]}, TypeError, "`constraints` must hold Constraint or None, got str"),
        (
            {"constraints": []},
            ValueError,
            "`constraints` must hold one for each of 1 inputs, not 0",
        ),
        ({"constraints": Constraint(prefix="a")}, ValueError, "the models have no target vocab"),
        ({"length_power": True}, TypeError, "`length_power` must be a number, got bool"),
        ({"length_power": -1}, ValueError, "`length_power` must be at least 0"),
        ({"length_power": 1.0, "method": "greedy"}, ValueError, "needs the method beam or exhaus"),
    ],
)
def test_wrong_options(options, kind, message):
    with pytest.raises(kind, match=message):
        search(Table(0), *inputs(1), **options)


def test_a_search_can_be_stopped_between_steps():
    steps = []

    def stop():
        steps.append(1)
        if len(steps) == 3:
            raise TimeoutError("over")

    with pytest.raises(TimeoutError, match="over"):
        search(Table(0, depth=None), *inputs(1), before_step=stop)
    assert len(steps) == 3


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
