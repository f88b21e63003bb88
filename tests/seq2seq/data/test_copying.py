"""Vocabularies of a model that copies: every token of an input has an id, and a text again."""

from __future__ import annotations

import pytest

from fenchel.seq2seq import Characters, Inflection, Subwords, Vocabulary, Words
from fenchel.seq2seq.data import _vocabulary
from fenchel.seq2seq.data._copying import FIRST_CODE, NOT_COPIED, copying
from fenchel.seq2seq.data._vocabulary import EOS, UNK


def test_characters() -> None:
    source, target = copying(Characters("abé"), Characters("ac"))
    size = target.size + FIRST_CODE
    assert source.encode("abcq") == [4, 5, source.size + 5, source.size + size + ord("q")]
    assert source.copy_ids() == [NOT_COPIED] * 4 + [4, size + ord("b"), size + ord("é")]
    assert target.encode("caq") == [5, 4, size + ord("q")]
    assert target.decode([5, UNK, size + ord("q"), size + 0x1F600, EOS, 4]) == "c\ufffdq😀"
    assert target.tokens([4, size + ord("q")]) == ["a", "q"]
    assert source.tokens(source.encode("abcq")) == ["a", "b", "c", "q"]
    assert source.unknown("abcq") == ["c", "q"]
    assert target.is_unambiguous
    with pytest.raises(
        ValueError, match="a token must be an id below 6, or that of a copied token"
    ):
        target.decode([4, target.size + 1])


def test_words() -> None:
    source, target = copying(Words(["der", "Baum"]), Words(["Baum"]))
    ids = source.encode("der Kirschbaum")
    assert target.decode([ids[1] - source.size, 4]) == "Kirschbaum Baum"
    again, _ = copying(Words(["der", "Baum"]), Words(["Baum"]))
    assert again.encode("der Kirschbaum") == ids  # in every process
    assert max(ids) < 2**31


def test_tags_are_not_copied() -> None:
    source, target = copying(Inflection(["en"], ["V"], ["a", "b"]), Characters("a"))
    assert source.encode("abq V;NEW")[:3] == [4, 5, UNK]
    assert source.encode("abq V;NEW")[3:] == [
        6,
        7,
        source.size + target.size + FIRST_CODE + ord("q"),
    ]
    assert source.copy_ids()[:6] == [NOT_COPIED] * 6
    assert source.languages == ["en"]


def test_what_looks_unknown_stays_unknown() -> None:
    source, target = copying(Characters("a"), Characters("a"))
    assert source.encode("\ufffd") == [UNK]
    assert target.encode("\ufffd") == [UNK]


def test_they_are_saved_as_what_they_extend() -> None:
    letters = Characters("ab")
    source, target = copying(letters, letters)
    assert (source.digest, target.digest) == (letters.digest, letters.digest)
    assert type(Vocabulary.from_json(source.to_json())) is Characters
    assert copying(source, target) == (source, target)


def test_remembered_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vocabulary, "MAX_CODED", 3)
    _, target = copying(Words([]), Words([]))
    ids = [target.copy_id(f"w{number}") for number in range(5)]
    assert target.tokens(ids) == ["<unk>", "<unk>", "w2", "w3", "w4"]


def test_what_cannot_be_copied_is_refused() -> None:
    subwords = Subwords.build(["der Baum des Lebens"] * 5, 20)
    with pytest.raises(ValueError, match=r"is for characters or words; subwords spell .* set `dat"):
        copying(subwords, subwords)
    with pytest.raises(ValueError, match="needs tokens that are the same on both sides; got a sou"):
        copying(Words(["ab"]), Characters("ab"))
