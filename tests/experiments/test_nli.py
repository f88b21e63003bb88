"""The classifiers read both formats, learn with every alignment, and draw what they aligned."""

from __future__ import annotations

import json
import random

import pytest
import torch
from experiments.nli_alignment import train
from experiments.nli_alignment.__main__ import main
from experiments.nli_alignment.data import Pair, Vocabulary, read_pairs
from experiments.nli_alignment.models import MODELS, pool, read_both
from experiments.recurrent import BidirectionalLSTM

from experiments import runs

VARIANTS = [(model, name) for model, (_, names) in MODELS.items() for name in names]
OPTIONS = {"seed": 1, "lr": 0.01, "batch": 8, "hidden": 12, "dropout": 0.0, "optimizer": "adam"}
HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def sick(folder, sizes=(("train", 48), ("trial", 12))):
    """Pairs that a "not" contradicts, and that entail otherwise."""
    draw = random.Random(0)
    folder.mkdir()
    for name, size in sizes:
        lines = []
        for place in range(size):
            who = draw.choice(["A man", "The old woman", "A big red dog"])
            denied = draw.random() < 0.5
            second = f"{who} is {'not ' if denied else ''}running"
            label = "CONTRADICTION" if denied else "ENTAILMENT"
            lines.append(f"{place}\t{who} is running fast\t{second}\t3.0\t{label}\n")
        (folder / f"TOY_{name}.txt").write_text(HEADER + "".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return sick(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def folders(data, tmp_path_factory):
    """A run of every variant, by name."""
    root = tmp_path_factory.mktemp("runs")
    for model, alignment in VARIANTS:
        folder = root / f"{model}-{alignment}"
        train.train(
            folder, data, model=model, alignment=alignment, epochs=5, vectors=None, **OPTIONS
        )
    return {folder.name: folder for folder in sorted(root.iterdir())}


@pytest.mark.parametrize(("model", "alignment"), VARIANTS)
def test_every_alignment_learns(model, alignment, folders):
    history = runs.read_history(folders[f"{model}-{alignment}"])
    assert history[-1]["loss"] < history[0]["loss"] / 2
    assert max(record["accuracy"] for record in history) == 100
    nonzero = history[-1]["nonzero"]
    if alignment == "softmax":
        assert nonzero == 100
    elif model == "esim":
        assert nonzero < 50
    else:
        assert 0 < nonzero <= 100


def test_sick(data):
    pairs = read_pairs(data / "TOY_trial.txt")
    assert len(pairs) == 12
    assert {pair.label for pair in pairs} == {0, 2}
    assert pairs[0].premise[-2:] == ["running", "fast"]


def test_snli(tmp_path):
    rows = [
        {"gold_label": "neutral", "sentence1": "It's Ann.", "sentence2": "A cat"},
        {"gold_label": "-", "sentence1": "x", "sentence2": "y"},
        {
            "gold_label": "entailment",
            "sentence1": "Dogs run",
            "sentence2": "They run.",
            "sentence1_binary_parse": "( Dogs run )",
            "sentence2_binary_parse": "( They ( run . ) )",
        },
    ]
    path = tmp_path / "snli_dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert read_pairs(path) == [
        Pair(["it", "'", "s", "ann", "."], ["a", "cat"], 1),
        Pair(["dogs", "run"], ["they", "run", "."], 0),
    ]


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "dev.txt"
    path.write_text(HEADER + "1\ta\tb\t1\tMAYBE\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"dev.txt, line 2: expected two sentences and one of"):
        read_pairs(path)
    path.write_text(HEADER + "1\ta\t\t1\tNEUTRAL\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: .* got 'neutral'"):
        read_pairs(path)


def test_word_vectors_are_read_and_stay(data, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("dog 1 2 3\nxylophone 4 5 6\n", encoding="utf-8")
    vocabulary = Vocabulary(["cat", "dog"])
    vectors = vocabulary.vectors(path)
    assert vectors.shape == (4, 3)
    assert vectors[3].tolist() == [1, 2, 3]
    assert not vectors[0].any()
    path.write_text("xylophone 4 5 6\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"vectors.txt must hold vectors of words of the data"):
        vocabulary.vectors(path)
    path.write_text("dog 1 2 3\n", encoding="utf-8")
    folder = tmp_path / "run"
    options = {**OPTIONS, "optimizer": "sgd"}
    train.train(folder, data, model="gru", alignment="softmax", epochs=2, vectors=path, **options)
    network, words = train.load(folder)
    assert network.words.weight[words.batch([Pair(["dog"], ["dog"], 0)]).premise].tolist() == [
        [[1, 2, 3]]
    ]


def test_both_sentences_are_read_as_each_alone():
    network = BidirectionalLSTM(3, 4)
    words = Vocabulary(["a"])
    pairs = [Pair(["a"] * 2, ["a"] * 4, 0), Pair(["a"] * 3, ["a"], 0)]
    batch = words.batch(pairs)
    p, h = torch.randn(2, 3, 3), torch.randn(2, 4, 3)
    premise, hypothesis = read_both(network, p, h, batch)
    torch.testing.assert_close(premise[:1, :2], network(p[:1, :2], torch.tensor([2])))
    torch.testing.assert_close(hypothesis[1:, :1], network(h[1:, :1], torch.tensor([1])))
    mean, most = pool(premise, batch.premise_lengths)
    torch.testing.assert_close(mean[0], premise[0, :2].mean(0))
    torch.testing.assert_close(most[0], premise[0, :2].amax(0))


def test_table(folders, tmp_path, capsys):
    assert main(["table", *map(str, folders.values()), "--output", str(tmp_path)]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [(line[1], line[2]) for line in lines[2:]] == VARIANTS
    assert lines[2][4:7] == ["5", "100.00", "100%"]
    assert lines[2][8] == "1.00"
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))[0]["history"]


@pytest.mark.parametrize("model", MODELS)
def test_picture(model, data, folders, tmp_path, capsys):
    output = tmp_path / "alignments.png"
    chosen = [str(folder) for name, folder in folders.items() if name.startswith(model)]
    options = ["picture", *chosen, "--data", str(data), "--output", str(output)]
    assert main(options) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("pair ")
    assert main([*options, "--pair", "0"]) == 1
    assert "`--pair` must be from 1 to 12, got 0" in capsys.readouterr().err


def test_an_alignment_of_the_other_model_is_refused(data, capsys):
    assert main(["--data", str(data), "--model", "gru", "--alignment", "matching"]) == 1
    assert "`--alignment` of gru must be one of" in capsys.readouterr().err
