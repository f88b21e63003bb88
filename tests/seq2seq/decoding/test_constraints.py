"""What constraints allow, for models with vocabularies, and what is wrong with others."""

from __future__ import annotations

import pytest
import torch
from tables import Table, inputs

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
from fenchel.seq2seq.data._vocabulary import UNK

METHODS = ("greedy", "beam", "exhaustive")


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


@pytest.mark.parametrize("copy_source", [False, True])
def test_without_the_unknown_token_the_claims_are_about_the_other_outputs(copy_source):
    torch.manual_seed(0)
    letters = Characters("ab")
    sizes = ModelConfig(
        embedding=8, hidden=8, layers=1, output="sparsemax", copy_source=copy_source
    )
    model = Seq2Seq(sizes, letters, letters).eval()
    constraints = [
        None,
        Constraint(allow_unknown=False),
        Constraint(forbidden=["<unk>"]),
        Constraint(forbidden="a", allow_unknown=False),
        Constraint(forbidden=["<unk>", "a"]),
    ]
    options = {"method": "exhaustive", "max_length": 3}
    free, *found = decode(model, ["abx"] * 5, constraints=constraints, **options)
    texts = [[model.target.decode(each.tokens) for each in result.hypotheses] for result in found]
    assert any(UNK in each.tokens for each in free.hypotheses)
    assert not any(UNK in each.tokens for result in found for each in result.hypotheses)
    assert any("x" in text for text in texts[0]) == copy_source  # copied, and so not unknown
    for first, second in (found[:2], found[2:]):
        assert [x.tokens for x in first.hypotheses] == [x.tokens for x in second.hypotheses]
        assert [x.log_probability for x in first.hypotheses] == pytest.approx(
            [x.log_probability for x in second.hypotheses], rel=1e-5
        )
        assert (first.certificate, first.mass) == (second.certificate, pytest.approx(second.mass))
    assert found[0].mass < free.mass


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
        ({"allow_unknown": 0}, TypeError, "`allow_unknown` must be a bool, got int"),
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
