"""Vocabularies around others: features before a text, and text in a normal form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fenchel.seq2seq import (
    Characters,
    Featured,
    ModelConfig,
    Normalized,
    Seq2Seq,
    Subwords,
    Symbols,
    Vocabulary,
    Words,
    score,
)
from fenchel.seq2seq.data._copying import copying
from fenchel.seq2seq.data._vocabulary import SPECIAL, UNK

FEATURED = Featured(Words(["le", "chat"]), ["N", "PL"])
NFC = Normalized(Characters("é"), "NFC")


def test_features_come_first() -> None:
    ids = FEATURED.encode("le chat\tPL; N")
    assert FEATURED.tokens(ids) == ["PL", "N", "le", "chat"]
    assert FEATURED.decode(ids) == "le chat"
    assert FEATURED.size == len(SPECIAL) + 4


def test_a_feature_is_not_the_word_that_is_spelled_like_it() -> None:
    vocabulary = Featured(Words(["N"]), ["N"])
    first, second = vocabulary.encode("N\tN")
    assert first != second
    assert vocabulary.tokens([first, second]) == ["N", "N"]


def test_unknown_features_and_words() -> None:
    assert FEATURED.encode("le chien\tV") == [UNK, 4, UNK]
    assert FEATURED.unknown("le chien\tV;N") == ["V", "chien"]


@pytest.mark.parametrize("text", ["le chat", "\tN", "le chat\t", "le chat\t;"])
def test_a_source_without_features(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected `text TAB feature;feature;…`, got "):
        FEATURED.encode(text)


def test_the_most_frequent_features_are_kept() -> None:
    texts = ["a\tN;PL", "b\tN", "c\tV"]
    assert Featured.names(texts, 10) == ["N", "PL", "V"]
    assert Featured.names(texts, 2) == ["N", "PL"]


def test_text_in_a_normal_form() -> None:
    assert NFC.encode("e\u0301") == NFC.encode("é") == [4]
    assert NFC.unknown("e\u0301e") == ["e"]
    assert NFC.normalize("e\u0301") == "é"
    assert Characters("é").encode("e\u0301") == [UNK, UNK]
    built = Normalized.build(Characters, "NFC", ["e\u0301", "é"], 100)
    assert built.size == len(SPECIAL) + 1
    assert Symbols(["é"]).normalize("e\u0301") == "e\u0301"


@pytest.mark.parametrize(
    "vocabulary",
    [
        Words(["le", "chat"]),
        Symbols(["le", "chat"]),
        Normalized(Symbols(["le", "chat"]), "NFC"),
        Subwords.build(["le chat"] * 4, 20),
    ],
)
def test_a_text_is_normalized_to_what_an_output_could_be(vocabulary: Vocabulary) -> None:
    text = " le  chat "
    assert vocabulary.normalize(text) == vocabulary.decode(vocabulary.encode(text)) == "le chat"
    assert Characters("a ").normalize(" a ") == " a "


@pytest.mark.parametrize("vocabulary", [FEATURED, NFC, Featured(NFC, ["N"]), Symbols(["a"])])
def test_vocabularies_are_saved(vocabulary: Vocabulary) -> None:
    again = Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert type(again) is type(vocabulary)
    assert again.digest == vocabulary.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "featured", "base": {}}, "does not hold"),
        ({"kind": "featured", "base": {"kind": "x"}, "features": []}, "`kind` must be one of"),
        ({"kind": "featured", "base": NFC.to_json(), "features": ["a", "a"]}, "stands twice"),
        ({"kind": "normalized", "base": NFC.to_json(), "form": "NFX"}, "`form` must be one of NFC"),
    ],
)
def test_damaged_vocabularies(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_json(change)


def test_new_tokens_and_copies() -> None:
    """Of sources with features, and in a normal form."""
    known = Featured(Normalized(Characters("ab"), "NFC"), ["V"])
    other = Featured(Normalized(Characters("bé"), "NFC"), ["N", "V"])
    larger = known.extended(other, 20)
    assert larger.tokens(larger.encode("abe\u0301\tN;V")) == ["N", "V", "a", "b", "é"]
    ids = known.ids_in(larger)
    assert larger.tokens([ids[i] for i in known.encode("ab\tV")]) == ["V", "a", "b"]
    assert known.copyable("xe\u0301\tV") == [None, "x", "é"]
    assert known.copyable_tokens()[-3:] == ["a", "b", None]


def test_scores_of_copies() -> None:
    """A token that is in no vocabulary has a probability of its own where it may be copied, and
    else that of the unknown token."""
    letters = Characters("ab")
    config = ModelConfig(embedding=4, hidden=4, layers=1, copy_source=True)
    model = Seq2Seq(config, *copying(letters, letters))
    copied, other, unknown = score(model, [("axb", "xa"), ("axb", "ya"), ("axb", "za")])
    assert copied.probabilities[0] != other.probabilities[0]
    assert other.probabilities[0] == unknown.probabilities[0]
