"""Scores against brute force and known values."""

from __future__ import annotations

from functools import cache

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from fenchel._choices import MEASURES, REFERENCES, TASKS
from fenchel.seq2seq import Characters, Normalized, Symbols, Vocabulary, Words
from fenchel.seq2seq.data._copying import copying
from fenchel.seq2seq.decoding import _metrics as metrics

WORDS = st.text("abc", max_size=6)


@given(WORDS, WORDS)
def test_edit_distance_is_the_fewest_edits(a: str, b: str) -> None:
    @cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        edits = distance(i - 1, j) + 1, distance(i, j - 1) + 1
        return min(*edits, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert metrics.edit_distance(a, b) == distance(len(a), len(b))


SYMBOLS, LETTERS = Symbols(["a"]), Characters("abc")


def score(
    name: str, outputs: list[str], references: list[list[str]], target: Vocabulary = LETTERS
) -> float:
    return metrics.measures(target)[name].compare(outputs, references)


def test_accuracy_and_edit_distance() -> None:
    outputs, references = ["drawn", "drawed", "sang"], [["drawn"], ["drawn"], ["sung"]]
    assert score("accuracy", outputs, references) == pytest.approx(100 / 3)
    assert score("edit_distance", outputs, references) == pytest.approx(1.0)


def test_error_rates_by_hand() -> None:
    outputs, references = ["a cat sat", "dog"], [["the cat sat down"], ["dog"]]
    assert score("WER", outputs, references) == pytest.approx(100 * 2 / 5)
    assert score("PER", outputs, references) == pytest.approx(100 * 2 / 5)
    # "a" to "the" takes three edits, and " down" five, of 16 + 3 characters.
    assert score("CER", outputs, references) == pytest.approx(100 * 8 / 19)


def test_the_symbols_of_an_output_form_one_word() -> None:
    outputs, references = ["b ɔ̃ ʒ u", "ʁ u"], [["b ɔ̃ ʒ u ʁ"], ["ʁ u"]]
    for target in (SYMBOLS, Normalized(SYMBOLS, "NFC")):
        assert score("WER", outputs, references, target) == 50.0
        assert score("PER", outputs, references, target) == pytest.approx(100 / 7)
        assert score("edit_distance", outputs, references, target) == 0.5


def test_error_rates_may_exceed_a_hundred_and_empty_outputs_are_wrong() -> None:
    assert score("CER", ["abcabc"], [["ab"]]) == 200.0
    assert score("PER", [""], [["a b"]], SYMBOLS) == 100.0
    assert score("WER", [""], [["a b"]], SYMBOLS) == 100.0


def test_the_nearest_reference_counts() -> None:
    outputs, references = ["abc"], [["xyz", "abd", "abc"]]
    assert score("accuracy", outputs, references) == 100.0
    assert score("CER", ["ab"], [["xyz", "abcd", "abc"]]) == pytest.approx(100 / 3)
    assert score("ROUGE-1", ["a tree"], [["no", "a tree"]]) == 100.0
    assert score("BLEU", ["a b c d e"], [["x y", "a b c d e"]]) == 100.0


def test_bleu_is_sacrebleu() -> None:
    outputs = ["a man rides a red bike .", "two dogs play in the snow ."]
    references = ["a man rides a bike .", "two dogs are playing in the snow ."]
    found = score("BLEU", outputs, [[text] for text in references])
    precisions = 12 / 14 * 8 / 12 * 4 / 10 * 2 / 8  # of 1- to 4-grams, counted by hand
    assert found == pytest.approx(100 * precisions**0.25, abs=0.005)
    assert found == round(sacrebleu.corpus_bleu(outputs, [references]).score, 2)
    chrf = score("chrF", outputs, [[text] for text in references])
    assert chrf == round(sacrebleu.corpus_chrf(outputs, [references]).score, 2)


def test_several_references_are_those_of_sacrebleu() -> None:
    outputs = ["a man rides a red bike .", "two dogs play in the snow ."]
    references = [["a man rides a bike .", "a man on a bike ."], ["two dogs play in snow ."]]
    streams = [[each[0] for each in references], [references[0][1], None]]
    for name, compute in (("BLEU", sacrebleu.corpus_bleu), ("chrF", sacrebleu.corpus_chrf)):
        assert score(name, outputs, references) == round(compute(outputs, streams).score, 2)


def test_rouge_of_any_script() -> None:
    found = {name: score(name, ["der große Baum"], [["der Baum"]]) for name in metrics.ROUGE}
    assert found == pytest.approx({"ROUGE-1": 80.0, "ROUGE-2": 0.0, "ROUGE-L": 80.0})
    assert score("ROUGE-1", ["дерево жизни"], [["дерево"]]) == pytest.approx(66.67)


def test_every_measure_has_its_name_and_direction() -> None:
    known = metrics.measures(LETTERS)
    assert set(known) == set(MEASURES)
    for name, measure in known.items():
        right = measure.compare(["ab cd ef gh"], [["ab cd ef gh"]])
        wrong = measure.compare(["xy"], [["ab cd ef gh"]])
        assert right < wrong if measure.is_error else right > wrong, name


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("target", [SYMBOLS, LETTERS, Words(["a"]), Normalized(SYMBOLS, "NFC")])
def test_every_task_has_measures(task: str, target: Vocabulary) -> None:
    assert set(metrics.default_measures(task, target)) <= set(MEASURES)
    assert metrics.default_references(task) in REFERENCES


def test_models_that_copy_have_the_measures_of_their_tokens() -> None:
    _, target = copying(Symbols(["a", "b"]), Symbols(["a", "b"]))
    assert metrics.default_measures("text", target) == ("accuracy", "WER", "PER")
    known = metrics.measures(target)
    assert [known[name].compare(["a b"], [["a a"]]) for name in ("WER", "PER")] == [100.0, 50.0]
