"""Scores against brute force and known values."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel._choices import TASKS
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


def test_inflection() -> None:
    found = metrics.inflection(["drawn", "drawed", "sang"], ["drawn", "drawn", "sung"])
    assert found == pytest.approx({"accuracy": 100 / 3, "edit_distance": 1.0})


def test_translation_is_sacrebleu() -> None:
    outputs = ["a man rides a red bike .", "two dogs play in the snow ."]
    references = ["a man rides a bike .", "two dogs are playing in the snow ."]
    found = metrics.translation(outputs, references)
    precisions = 12 / 14 * 8 / 12 * 4 / 10 * 2 / 8  # of 1- to 4-grams, counted by hand
    assert found["BLEU"] == pytest.approx(100 * precisions**0.25, abs=0.005)
    assert 0 < found["chrF"] < 100
    assert metrics.translation(outputs, outputs) == {"BLEU": 100.0, "chrF": 100.0}


def test_summarization_is_rouge_of_any_script() -> None:
    found = metrics.summarization(["der große Baum"], ["der Baum"])
    assert found["ROUGE-1"] == pytest.approx(80.0)
    assert found["ROUGE-2"] == 0.0
    assert found["ROUGE-L"] == pytest.approx(80.0)
    assert metrics.summarization(["дерево жизни"], ["дерево"])["ROUGE-1"] == pytest.approx(66.67)


def test_every_task_has_its_scores() -> None:
    assert tuple(metrics.SCORES) == TASKS
