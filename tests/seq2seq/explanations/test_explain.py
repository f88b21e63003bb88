"""Explanations agree with the search and with the model's own probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from tables import FIRST, Mean, Pieces, Table, spelling

from fenchel.seq2seq import Inflection, ModelConfig, Seq2Seq, Subwords, explain
from fenchel.seq2seq.data._vocabulary import BOS, EOS, Characters, Words

LETTERS = Characters("abcd")


class Worded(Table):
    """A table that reads and writes letters."""

    source = target = LETTERS

    def __init__(self, seed: int, support: int = 3) -> None:
        super().__init__(seed, classes=LETTERS.size, support=support)


def leaves(node):
    """The nodes where hypotheses end, with the probability from the root."""
    if node.hypothesis is not None:
        yield node
    for child in node.children:
        yield from leaves(child)


@pytest.mark.parametrize("seed", range(8))
def test_the_tree_has_every_hypothesis(seed):
    table = Worded(seed)
    found = explain(table, "abc", shown=1000)
    truth = Mean([table]).everything(LETTERS.encode("a")[0])
    ends = {found.outputs[leaf.hypothesis]: leaf.mass for leaf in leaves(found.tree)}
    assert ends == pytest.approx({LETTERS.decode(list(y)): p for y, p in truth.items()})
    assert found.result.complete
    assert_consistent(found.tree)


def assert_consistent(node):
    """What follows a node sums to it, and a node with one child would be one with it."""
    if node.children:
        assert sum(child.mass for child in node.children) == pytest.approx(node.mass)
        assert node.rest == pytest.approx(0, abs=1e-9)
        assert len(node.children) > 1 or not node.tokens
    for child in node.children:
        assert child.mass == pytest.approx(node.mass * child.probability)
        assert_consistent(child)


def test_what_is_not_shown_is_missing_from_the_tree():
    found = explain(Worded(3), "abc", shown=2)
    assert len(found.outputs) == len(found.targets) == len(found.attention) == 2
    assert len(found.result.hypotheses) > 2
    shown = sum(leaf.mass for leaf in leaves(found.tree))

    def rest(node):
        return node.rest + sum(map(rest, node.children))

    assert shown + rest(found.tree) == pytest.approx(1)


@pytest.mark.parametrize("models", [1, 2])
def test_a_reference_is_decoded_by_force(models):
    tables = [Worded(seed) for seed in range(models)]
    positions = explain(tables, "abc", reference="ba").reference
    ids = LETTERS.encode("ba")
    assert [position.token for position in positions] == ["b", "a", "end"]
    for place, position in enumerate(positions):
        row = Mean(tables).row(LETTERS.encode("a")[0], tuple(ids[:place]))
        token = [*ids, EOS][place]
        assert position.probability == pytest.approx(row[token])
        named = {"end" if i == EOS else LETTERS.tokens([i])[0]: p for i, p in enumerate(row) if p}
        assert dict(position.candidates) == pytest.approx(named)
        values = [p for _, p in position.candidates]
        assert values == sorted(values, reverse=True)
        assert position.others == 0


def test_long_lists_of_candidates_are_cut_and_counted():
    row = Worded(1, support=5).row(LETTERS.encode("b")[0], ())
    for letter in "abcd":
        first = explain(Worded(1, support=5), "b", reference=letter, shown=1).reference[0]
        own = row[LETTERS.encode(letter)[0]]
        assert [p for _, p in first.candidates] == [own or max(row)]
        assert first.others == sum(p > 0 for p in row) - 1


def test_words_are_not_taken_for_the_end_and_spaces_are_seen():
    words = Words(["end", "the"])
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), words, words)
    found = explain(model, "the end", reference="the end", max_length=3, limit=20)
    assert found.source == ("the", "“end”")
    assert [position.token for position in found.reference] == ["the", "“end”", "end"]
    assert all(target[-1] == "end" or "end" not in target for target in found.targets)
    letters = Characters("a b")
    spaced = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), letters, letters)
    assert explain(spaced, "a b", max_length=3, limit=20).source == ("a", "␣", "b")


def test_every_path_of_a_text_is_in_the_tree():
    pieces = Pieces(["a", "b", "aa", "ab"])
    several = 0
    for seed in range(12):
        table = Table(seed, classes=pieces.size)
        table.source = table.target = pieces  # type: ignore[attr-defined]
        found = explain(table, "a", shown=1000)
        truth = Mean([table]).everything(pieces.encode("a")[0])
        masses: dict[str, float] = {}
        for leaf in leaves(found.tree):
            text = found.outputs[leaf.hypothesis]
            masses[text] = masses.get(text, 0.0) + leaf.mass
        assert masses == pytest.approx(spelling(truth, pieces))
        assert len(list(leaves(found.tree))) == len(truth)
        assert len(set(found.outputs)) == len(found.outputs)
        assert not found.is_unambiguous
        several += len(truth) > len(masses)
    assert several


def test_unknown_parts_of_the_input_are_named():
    source = Inflection(["english"], ["PST", "V"], list("adw"))
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), source, LETTERS)
    found = explain(model, "dr\u00e4w V;PTS", max_length=2, limit=5)
    assert found.unknown == ("PTS", "r", "\u00e4")
    assert found.source.count("<unk>") == 3
    assert explain(model, "daw V;PST", max_length=2, limit=5).unknown == ()
    subwords = Subwords.build(["the march", "marched"] * 9, 30)
    assert subwords.unknown("march \u00e4") == ["\u00e4"]
    assert Words(["ja"]).unknown("ja nein") == ["nein"]


def test_prefixes_that_the_length_limit_broke_off_are_shown_as_such():
    class Endless(Worded):
        def row(self, item, prefix):
            return [0.0] * FIRST + [0.5, 0.5, 0.0, 0.0]

    found = explain(Endless(0), "a", max_length=2)
    assert all(target[-1] == "…" for target in found.targets)
    assert sorted(found.outputs) == ["aa", "ab", "ba", "bb"]
    assert "only the beginnings" in found.html()


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_a_model_is_explained_as_it_decodes(architecture):
    sizes = {"embedding": 8, "hidden": 8, "layers": 1, "heads": 2}
    model = Seq2Seq(ModelConfig(architecture=architecture, **sizes), LETTERS, LETTERS)
    found = explain([model, model], "cab", reference="ab", limit=20, max_length=4)
    assert found.source == ("c", "a", "b")
    assert model.training  # as it was
    model.eval()
    state = model.start(torch.tensor([LETTERS.encode("cab")]), torch.tensor([3]))
    scores, _, _ = model.step(state, torch.tensor([BOS]))
    expected = model.probabilities(scores)[0, LETTERS.encode("a")[0]].item()
    assert found.reference[0].probability == pytest.approx(expected, rel=1e-5)
    for hypothesis, weights in zip(found.result.hypotheses, found.attention, strict=False):
        heads = 2 * (2 if architecture == "transformer" else 1)
        assert weights.shape == (len(hypothesis.tokens) + 1, heads, 3)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        assert hypothesis.probability == pytest.approx(math.prod(hypothesis.probabilities))
    assert "<table" in found.html()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": ""}, "`text` must hold at least one token, got ''"),
        ({"reference": ""}, "`reference` must hold at least one token, got ''"),
        ({"shown": 0}, "`shown` must be at least 1, got 0"),
        ({"limit": 10**9}, "`limit` must be at most 8192, got 1000000000; with fewer, a certif"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {"models": Worded(0), "text": "a", **change}
    with pytest.raises(ValueError, match=message):
        explain(arguments.pop("models"), arguments.pop("text"), **arguments)


def test_an_ensemble_shares_its_vocabularies():
    other = Worded(0)
    other.target = Characters("abce")  # type: ignore[misc]
    with pytest.raises(ValueError, match="must share their target vocabulary; train them on the"):
        explain([Worded(0), other], "a")
