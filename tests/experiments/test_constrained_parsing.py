"""The parser with limits on children: the limits, the graph, training, and the table."""

from __future__ import annotations

import pytest
import torch
from experiments.constrained_parsing import train
from experiments.constrained_parsing.__main__ import main
from experiments.constrained_parsing.valency import children, limits_of, trees_within
from experiments.dependency_parsing.model import Encoder, Vocabulary
from experiments.dependency_parsing.train import read_split
from test_parsing import treebank

from fenchel import map_inference


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return treebank(tmp_path_factory.mktemp("data") / "toy")


def test_limits_of_tags(data):
    sentences = read_split(data, "train")
    encode = Encoder(Vocabulary.of(sentences))
    limits = limits_of(sentences, encode, 1.0)
    found = {tag: int(limits[number]) for tag, number in encode.tags.items()}
    assert found == {"DET": 0, "ADJ": 0, "NOUN": 2, "VERB": 2}
    assert limits_of(sentences, encode, 0.01)[encode.tags["NOUN"]] == 1


def test_trees_keep_to_their_limits():
    torch.manual_seed(0)
    limits = torch.tensor([0, 1, 2, 1, 7])
    graph = trees_within(limits)
    for _ in range(20):
        best = map_inference(graph, torch.randn(5, 5, dtype=torch.float64))
        if best.is_integral:
            assert (children(best.indicator.argmax(0)) <= limits).all()
    assert trees_within(torch.tensor([3])).shape == (1, 1)


def test_training_and_table(data, tmp_path, capsys):
    for training in train.TRAININGS:
        arguments = ["--data", str(data), "--training", training, "--epochs", "6", "--lr", "0.005"]
        arguments += ["--batch", "4"]
        assert main([*arguments, "--run", str(tmp_path / training), "--share", "1.0"]) == 0
        (record, *_) = train.runs.read_history(tmp_path / training)[-1:]
        assert record["graph_over"] == 0
        assert record["graph_uas"] > 95
        assert record["integral"] > 90
    runs = [str(tmp_path / training) for training in train.TRAININGS]
    assert main(["table", *runs, "--output", str(tmp_path / "results")]) == 0
    assert "| toy | graph | 1 | 6 |" in capsys.readouterr().out
    assert (tmp_path / "results" / "table.md").exists()
