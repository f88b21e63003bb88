"""Vocabularies of a model that copies: every token of an input has an id, and a text again."""

from __future__ import annotations

import numpy as np
import pytest

from fenchel.seq2seq import Characters, Featured, Inflection, Subwords, Symbols, Vocabulary, Words
from fenchel.seq2seq.data import _codes
from fenchel.seq2seq.data._codes import CODES, Codes
from fenchel.seq2seq.data._copying import (
    FIRST_CODE,
    FIRST_OTHER,
    NOT_COPIED,
    check_copyable,
    copying,
)
from fenchel.seq2seq.data._corpus import encode
from fenchel.seq2seq.data._normalized import Normalized
from fenchel.seq2seq.data._vocabulary import EOS, UNK


def test_characters() -> None:
    source, target = copying(Characters("abé"), Characters("ac"))
    size, place = target.size + FIRST_OTHER, target.size + FIRST_CODE
    assert source.encode("abcq") == [4, 5, source.size + 5, source.size + size + ord("q")]
    assert source.copy_ids() == [NOT_COPIED] * 4 + [4, place, place + 1]
    assert target.encode("caq") == [5, 4, size + ord("q")]
    assert target.decode([5, UNK, size + ord("q"), size + 0x1F600, EOS, 4]) == "c\ufffdq😀"
    assert target.tokens([4, size + ord("q")]) == ["a", "q"]
    assert source.tokens(source.encode("abcq")) == ["a", "b", "c", "q"]
    assert source.unknown("abcq\ufffd") == ["\ufffd"]
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


COLLIDING = ("Name1873", "Name260232"), ("Name7773", "Name65082")
"""Words whose digests have the same first 30 bits."""


def test_no_two_words_share_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_codes, "digest_number", lambda word: len(word))  # almost all collide
    source, target = copying(Words(["meet"]), Words(["meet"]))
    text = "meet " + " ".join(f"{word}!" for pair in COLLIDING for word in pair)
    ids = source.encode(text)
    assert len(set(ids)) == len(text.split())
    assert target.decode([index - source.size for index in ids[1:]]) == text[len("meet ") :]
    assert target.encode(text)[1:] == [index - source.size for index in ids[1:]]


def test_many_words_have_ids_of_their_own() -> None:
    codes = Codes()
    names = [f"Name{number}" for number in range(300_000)]
    numbers = list(map(codes.number, names))
    assert len(set(numbers)) == len(names)
    assert list(map(codes.word, numbers)) == names
    assert max(numbers) < 1 << _codes.BITS


def test_pairs_of_large_ids_are_kept_as_they_are() -> None:
    source, target = copying(Words(["meet"]), Words(["meet"]))
    pairs = [("meet", "meet"), ("meet Name7773 Name65082", "Name65082"), ("meet", "meet")]
    found = encode(pairs, source, target)
    assert found.batch(np.array([0, 1])).source.tolist() == [[4, 0, 0], source.encode(pairs[1][0])]
    assert found.batch(np.array([1])).target[0, 1] == target.encode("Name65082")[0]
    assert found.digest == encode(pairs, *copying(Words(["meet"]), Words(["meet"]))).digest


def test_tags_are_not_copied() -> None:
    source, target = copying(Inflection(["en"], ["V"], ["a", "b"]), Characters("a"))
    assert source.encode("abq V;NEW")[:3] == [4, 5, UNK]
    assert source.encode("abq V;NEW")[3:] == [
        6,
        7,
        source.size + target.size + FIRST_OTHER + ord("q"),
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
    monkeypatch.setattr(_codes, "MAX_WORDS", 3)
    _, target = copying(Words([]), Words([]))
    ids = [target.encode(f"w{number}")[0] for number in range(6)]
    assert target.tokens(ids) == ["<unk>", "<unk>", "w2", "w3", "w4", "w5"]
    assert [target.has_id(index) for index in ids] == [False] * 2 + [True] * 4
    text = "v0 v1 v2 v3 v4"  # the words of one text are remembered, however many
    assert target.decode(target.encode(text)) == text


def test_words_in_use_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_codes, "MAX_WORDS", 2)
    source, target = copying(Words(["der", "Wald"]), Words(["der"]))
    (wald,) = (index for index in source.copy_ids()[4:] if index >= target.size)
    with CODES.in_use():
        ids = [target.encode(f"w{number}")[0] for number in range(9)]
        assert target.tokens(ids) == [f"w{number}" for number in range(9)]
    assert target.tokens(ids) == [f"w{number}" for number in range(9)]
    target.encode("w9")
    assert target.tokens(ids)[:7] == ["<unk>"] * 7
    assert target.tokens([wald]) == ["Wald"]  # a token of the source vocabulary never is


def test_what_cannot_be_copied_is_refused() -> None:
    subwords = Subwords.build(["der Baum des Lebens"] * 5, 20)
    with pytest.raises(ValueError, match=r"is for characters or words; subwords spell .* set `dat"):
        copying(subwords, subwords)
    normalized = Normalized(Characters("ab"), "NFC")
    with pytest.raises(ValueError, match=r"cannot be combined with `data.unicode`"):
        copying(normalized, normalized)
    with pytest.raises(ValueError, match="needs tokens that are the same on both sides; got a sou"):
        copying(Words(["ab"]), Characters("ab"))
    with pytest.raises(ValueError, match=r"Set `data\.tokens\.source` and `data\.tokens\.target`"):
        copying(Words(["a"]), Characters("ab"))
    with pytest.raises(ValueError, match="only if no source has a space"):
        copying(Characters("a "), Symbols(["a"]))


def test_a_space_that_is_not_in_the_vocabulary_is_refused_in_training() -> None:
    pair = copying(Characters("ab"), Symbols(["a"]))
    check_copyable(*pair, "ab\N{SNOWMAN}")
    with pytest.raises(ValueError, match=r"only if no source has a space. There is one in 'a b'"):
        check_copyable(*pair, "a b")
    featured = copying(Featured(Characters("ab"), ["V"]), Symbols(["a"]))
    check_copyable(*featured, "ab\tV")
    check_copyable(Characters("ab"), Symbols(["a"]), "a b")  # nothing is copied


def test_a_space_is_no_symbol() -> None:
    source, target = copying(Characters("a"), Symbols(["b"]))
    assert source.encode("b a")[1] == UNK
    assert target.decode([source.encode("x")[0] - source.size]) == "x"
