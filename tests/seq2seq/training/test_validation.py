"""Which of two models is the better one, by every metric."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from small_models import build

import inflected
from fenchel._choices import Metric
from fenchel.seq2seq import Characters
from fenchel.seq2seq.data._batches import batch
from fenchel.seq2seq.data._corpus import encode
from fenchel.seq2seq.data._vocabulary import EOS, UNK
from fenchel.seq2seq.training._validation import Validator

LETTERS = Characters("abc")
ERRORS = {"loss", "WER", "PER", "CER", "edit_distance"}


def validator(tmp_path, metric: str, **evaluation: object) -> Validator:
    config = inflected.config(tmp_path, training={"metric": metric}, evaluation=evaluation)
    return Validator(config, LETTERS, LETTERS, [("a", "b")], encode([("a", "b")], LETTERS, LETTERS))


@pytest.mark.parametrize("metric", get_args(Metric))
def test_errors_are_best_if_they_are_low(tmp_path, metric: str) -> None:
    rank = validator(tmp_path, metric).rank

    def metrics(value: float, loss: float = 1.0) -> dict:
        known = {"loss": loss, "token_accuracy": 0.5, "accuracy": 0.5, "scores": {metric: value}}
        return {**known, **({metric: value} if metric in known else {})}

    low, high = rank(metrics(1.0)), rank(metrics(2.0))
    assert low > high if metric in ERRORS else low < high
    assert rank(metrics(1.0, loss=0.5)) >= rank(metrics(1.0, loss=2.0))


def test_only_what_is_asked_for_is_decoded(tmp_path) -> None:
    assert validator(tmp_path, "accuracy").names == ()
    assert validator(tmp_path, "loss").names == ()
    assert validator(tmp_path, "BLEU").names == ("BLEU",)
    assert validator(tmp_path, "BLEU", measures=["WER", "BLEU"]).names == ("WER", "BLEU")
    assert validator(tmp_path, "loss", measures=["CER"]).names == ("CER",)


def test_unknown_tokens_are_never_right() -> None:
    pairs, model = batch([([4, 5], [5, UNK, 6])]), build()
    scores = torch.zeros(1, 4, model.target.size, dtype=torch.float64)
    for place, token in enumerate((5, UNK, 6, EOS)):
        scores[0, place, token] = 9.0
    _, is_right, _ = model.assess(scores, pairs)
    assert is_right.tolist() == [[True, False, True, True]]
