"""The parser learns a small language with every loss, and its commands do what they say."""

from __future__ import annotations

import random

import pytest
import torch
from experiments.dependency_parsing import train
from experiments.dependency_parsing.__main__ import main
from experiments.dependency_parsing.conllu import read_conllu
from experiments.dependency_parsing.model import UNKNOWN, Encoder, Parser, Vocabulary
from experiments.dependency_parsing.table import LOSSES

from experiments import runs

WORDS = {"DET": ("the", "a"), "ADJ": ("old", "red"), "NOUN": ("dog", "cat"), "VERB": ("saw", "ate")}
PATTERN = ("DET", "ADJ", "NOUN", "VERB", "DET", "NOUN")
HEADS = (3, 3, 4, 0, 6, 4)
OPTIONS = {"seed": 1, "lr": 0.005, "batch": 4}


def treebank(folder, sizes=(("train", 48), ("dev", 12))):
    """Sentences "the old dog saw a cat", with and without the adjective."""
    draw = random.Random(0)
    folder.mkdir()
    for name, size in sizes:
        lines = []
        for _ in range(size):
            short = draw.random() < 0.5
            tags = PATTERN[:1] + PATTERN[2:] if short else PATTERN
            heads = (2, 3, 0, 5, 3) if short else HEADS
            for place, (tag, head) in enumerate(zip(tags, heads, strict=True), 1):
                word = draw.choice(WORDS[tag])
                lines.append(f"{place}\t{word}\t_\t{tag}\t_\t_\t{head}\tx\t_\t_")
            lines.append("")
        (folder / f"toy-{name}.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return treebank(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train.train(folder, data, loss="margin_sparsemap", epochs=6, **OPTIONS)
    return folder


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns_the_language(loss, data, tmp_path):
    history = train.train(tmp_path, data, loss=loss, epochs=6, **OPTIONS)
    assert history[-1]["loss"] < history[0]["loss"] / 2
    assert max(record["uas"] for record in history) > 95
    assert all(record["trees"] >= 1 and record["heads"] >= 1 for record in history)


def test_sparsemap_ends_with_one_tree(run):
    first, *_, last = runs.read_history(run)
    assert last["trees"] == last["heads"] == 1
    assert last["single"] == 100
    assert first["trees"] > 1


def test_a_run_that_stopped_goes_on_to_the_same_weights(data, tmp_path, run):
    for epochs in (2, 6):
        train.train(tmp_path, data, loss="margin_sparsemap", epochs=epochs, **OPTIONS)
    again, whole = (train.load(folder)[0].state_dict() for folder in (tmp_path, run))
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_padding_changes_no_arc(data, run):
    parser, encode = train.load(run)
    sentences = read_conllu(data / "toy-dev.conllu")
    batch = encode(sentences)
    arcs = parser(batch)
    for place, sentence in enumerate(sentences):
        n = len(sentence.words)
        torch.testing.assert_close(arcs[place, :n, :n], parser(encode([sentence]))[0])


def test_the_diagonal_is_the_arc_from_the_root(data):
    sentences = read_conllu(data / "toy-dev.conllu")[:1]
    vocabulary = Vocabulary.of(sentences)
    parser, batch = Parser(vocabulary).eval(), Encoder(vocabulary)(sentences)
    arcs = parser(batch)[0]
    inputs = torch.cat([parser.words(batch.words), parser.tags(batch.tags)], -1)
    states = parser.reader(inputs, batch.lengths + 1)
    for head, word in ((0, 2), (1, 2), (4, 1)):  # counted from the root
        pair = parser.head(states[0, head]) + parser.modifier(states[0, word])
        expected = parser.arc(pair.tanh()).squeeze()
        row = word - 1 if head == 0 else head - 1
        torch.testing.assert_close(arcs[row, word - 1], expected)


def test_rare_words_are_forgotten_more_often(data):
    vocabulary = Vocabulary(["often", "once"], [9, 1], ["X"])
    parser = Parser(vocabulary, dropout=0.25)
    torch.testing.assert_close(parser.forget, torch.tensor([0, 0, 0, 0.25 / 9.25, 0.2]))
    encode = Encoder(vocabulary)
    assert encode.words["often"] == 3
    assert encode.words.get("never", UNKNOWN) == UNKNOWN


def test_numbers_are_one_word(data):
    sentence = read_conllu(data / "toy-dev.conllu")[0]
    words = ("1,000", "3.5", "The", "the", "B2", ".")
    numbered = type(sentence)(words, ("X",) * 6, (0, 1, 1, 1, 1, 1), ())
    assert sorted(Vocabulary.of([numbered]).words) == [".", "<number>", "b2", "the"]


def test_parsing_a_file(data, run, tmp_path):
    output = tmp_path / "out.conllu"
    source = data / "toy-dev.conllu"
    assert main(["parse", "--run", str(run), "--input", str(source), "--output", str(output)]) == 0
    gold, parsed = read_conllu(source), read_conllu(output)
    assert [sentence.heads for sentence in parsed] == [sentence.heads for sentence in gold]


def test_table(run, tmp_path, capsys):
    assert main(["table", str(run), "--output", str(tmp_path)]) == 0
    head, _, row = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert len(head) == len(row)
    assert row[:7] == ["| toy", "margin_sparsemap", "0.005", "1", "6", "100.00", "–"]
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md", "toy.png"}


def test_picture(data, run, tmp_path, capsys):
    output = tmp_path / "parses.png"
    options = ["picture", "--run", str(run), "--data", str(data), "--output", str(output)]
    assert main(options) == 0
    assert "sentence " in capsys.readouterr().out
    assert output.read_bytes().startswith(b"\x89PNG")
    assert main([*options, "--sentence", "99"]) == 1
    assert "`--sentence` must be from 1 to 12, got 99" in capsys.readouterr().err


def test_training_from_the_command_line(data, tmp_path, capsys):
    folder = tmp_path / "run"
    options = ["--data", str(data), "--run", str(folder), "--epochs", "1", "--loss", "crf"]
    assert main(options) == 0
    assert "best dev UAS" in capsys.readouterr().out
    assert main([*options, "--seed", "2"]) == 1
    assert "holds a run with other seed" in capsys.readouterr().err


def test_a_treebank_without_trees_is_refused(tmp_path):
    folder = treebank(tmp_path / "bare")
    path = folder / "toy-dev.conllu"
    path.write_text(path.read_text("utf-8").replace("\t0\tx", "\t_\tx", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"toy-dev.conllu: sentence 1 must have a head for every"):
        train.read_split(folder, "dev")
