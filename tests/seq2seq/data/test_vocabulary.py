"""Vocabularies: there and back, from any order of the data, and through JSON."""

from __future__ import annotations

import json

import pytest

from fenchel.seq2seq.data._inflection import Inflection
from fenchel.seq2seq.data._subwords import Subwords, sample_texts
from fenchel.seq2seq.data._vocabulary import EOS, UNK, Characters, Vocabulary, Words

TEXTS = ["der Baum des Lebens", "ein Blick auf den Baum", "das Leben ist ein Baum"] * 5
SOURCES = ["draw\tV;PST\tenglish", "break down\tV;V.PTCP; PST\tenglish", "ça\tN\tfrench"]


def build(kind: type) -> Vocabulary:
    return kind.build(SOURCES if kind is Inflection else TEXTS, 60)


@pytest.mark.parametrize("kind", [Characters, Words, Subwords])
def test_there_and_back(kind: type) -> None:
    vocabulary = build(kind)
    for text in TEXTS:
        ids = vocabulary.encode(text)
        assert min(ids) > UNK
        assert max(ids) < vocabulary.size
        assert vocabulary.decode([1, *ids, EOS, ids[0], 0]) == text
        assert len(vocabulary.tokens(ids)) == len(ids)


@pytest.mark.parametrize("kind", [Characters, Words, Subwords, Inflection])
def test_through_json(kind: type) -> None:
    vocabulary = build(kind)
    again = Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    text = SOURCES[1] if kind is Inflection else TEXTS[0]
    assert type(again) is kind
    assert again.size == vocabulary.size
    assert again.encode(text) == vocabulary.encode(text)


@pytest.mark.parametrize("kind", [Characters, Words])
def test_the_order_of_texts_does_not_matter(kind: type) -> None:
    assert kind.build(reversed(TEXTS), 60).to_json() == build(kind).to_json()


@pytest.mark.parametrize("kind", [Characters, Words])
def test_only_the_most_frequent_are_kept(kind: type) -> None:
    vocabulary = kind.build(["a a a" if kind is Words else "aaa", "b"], 5)
    assert vocabulary.size == 5
    assert vocabulary.tokens([4]) == ["a"]
    assert vocabulary.encode("b") == [UNK]
    assert vocabulary.decode([UNK]) == "\N{REPLACEMENT CHARACTER}"


def test_subwords_know_other_letters_as_unknown() -> None:
    assert UNK in build(Subwords).encode("日本")


def test_too_few_subwords_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot learn 8 subwords.*change `data.vocabulary_size`"):
        Subwords.build(TEXTS, 8)


def test_inflection_reads_language_tags_and_characters() -> None:
    vocabulary = Inflection.build(SOURCES, 100)
    ids = vocabulary.encode("break down\tV;PST\tenglish")
    assert vocabulary.tokens(ids) == ["<english>", "V", "PST", *"break down"]
    assert vocabulary.decode(ids) == "break down"
    assert vocabulary.encode("break down V;PST english") == ids
    assert vocabulary.encode("break down\tV; PST\tenglish") == ids


def test_a_tag_is_no_character() -> None:
    vocabulary = Inflection.build(["NV\tN;V\tx"], 100)
    assert len(set(vocabulary.encode("NV N;V x"))) == 5


def test_the_only_language_may_be_left_out() -> None:
    vocabulary = Inflection.build(SOURCES[:1], 100)
    assert vocabulary.encode("draw V;PST") == vocabulary.encode("draw\tV;PST\tenglish")
    with pytest.raises(ValueError, match="expected a lemma and tags"):
        vocabulary.encode("draw")
    with pytest.raises(ValueError, match=r"name the language of .* one of english, french"):
        Inflection.build(SOURCES, 100).encode("draw V;PST")
    with pytest.raises(ValueError, match="expected `lemma TAB tags TAB language`"):
        vocabulary.encode("a\tb\tc\td")


@pytest.mark.parametrize("text", ["\tV;PST", " \tV;PST", "draw\t", "draw\t;", " V;PST", "draw ;"])
def test_lemma_and_tags_may_not_be_empty(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Inflection.build(SOURCES[:1], 100).encode(text)


def test_languages_that_were_not_learnt_are_refused() -> None:
    vocabulary = Inflection.build(SOURCES, 100)
    with pytest.raises(ValueError, match=r"language 'klingon' of .* not one .*: english, french"):
        vocabulary.encode("draw\tV;PST\tklingon")
    with pytest.raises(ValueError, match="expected a lemma and tags") as error:
        vocabulary.encode("x" * 100_000)
    assert len(str(error.value)) < 200


def test_tags_leave_room_for_characters() -> None:
    with pytest.raises(ValueError, match=r"leave no room .* raise `data.vocabulary_size`"):
        Inflection.build(SOURCES, 8)


def test_subwords_are_learnt_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample_texts(TEXTS, len(TEXTS)) == TEXTS
    some = sample_texts((str(i) for i in range(1000)), 50)
    assert some == sample_texts((str(i) for i in range(1000)), 50)
    assert len(set(some)) == 50
    assert 300 < sum(map(int, some)) / 50 < 700
    monkeypatch.setattr("fenchel.seq2seq.data._subwords.MAX_TRAINING_TEXTS", 1)
    assert UNK in Subwords.build(["abab", "zzzz"], 60).encode("zabz")


def test_subwords_know_long_texts_and_need_some() -> None:
    assert UNK not in Subwords.build(["word " * 2000], 60).encode("word")
    with pytest.raises(ValueError, match="there is no text to learn subwords from"):
        Subwords.build([], 60)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "runes"}, "must be one of .*words, got 'runes'"),
        ([], "got None"),
        ({"kind": "words", "surplus": 1}, "does not hold"),
        ({"kind": "subwords"}, "does not hold"),
        ({"kind": "words", "tokens": 3}, "does not hold"),
        ({"kind": "words", "tokens": ["a", 7]}, "must hold different texts; 7 is not a text"),
        ({"kind": "characters", "tokens": ["a", "a"]}, "must hold .*; 'a' stands twice"),
        (
            {"kind": "inflection", "languages": ["x"], "tags": [None], "characters": []},
            "`tags` must hold different texts; None is not a text",
        ),
        ({"kind": "subwords", "model": "AAAA"}, "are not a model of sentencepiece"),
    ],
)
def test_other_json_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_json(value)  # type: ignore[arg-type]
