"""A model's folder: what comes back is what went in, and damage is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fenchel.seq2seq import ModelConfig, Seq2Seq, load, save
from fenchel.seq2seq._files import FormatError, write_json, write_tensors
from fenchel.seq2seq.data._vocabulary import Characters

LETTERS = Characters("abc")
ARCHITECTURES = {
    "lstm": ModelConfig(hidden=8, embedding=6),
    "tied": ModelConfig(hidden=8, embedding=8, layers=1, tie_embeddings=True),
    "transformer": ModelConfig.model_validate(
        {
            "architecture": "transformer",
            "hidden": 8,
            "heads": 2,
            "attention": {"mapping": "entmax", "learned_alpha": True},
            "output": "sparsemax",
        }
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_come_back(tmp_path: Path, name: str) -> None:
    model = Seq2Seq(ARCHITECTURES[name], LETTERS, LETTERS).eval()
    save(model, tmp_path / "deep" / "model")
    again = load(tmp_path / "deep" / "model")
    assert again.config == model.config
    assert not again.training
    batch = torch.tensor([[4, 5, 6]]), torch.tensor([3]), torch.tensor([[1, 4]])
    torch.testing.assert_close(again(*batch)[0], model(*batch)[0], rtol=0, atol=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Seq2Seq(ARCHITECTURES["lstm"], LETTERS, LETTERS), tmp_path)
    return tmp_path


def test_no_pickle_is_written(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "vocabulary.json", "weights.safetensors"}


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no trained model.*weights\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", r"config\.json is not JSON"),
        ("config.json", b"[]", "does not hold a configuration"),
        ("config.json", b'{"model": []}', "does not hold a configuration"),
        ("config.json", b"{}", "does not hold a model"),
        (
            "config.json",
            b'{"model": {"hidden": "x", "layer": 2}}',
            r"not hold a model: model\.hidden: must be an integer, got 'x'.*did you mean layers",
        ),
        ("vocabulary.json", b"{}", "does not hold vocabularies"),
        (
            "vocabulary.json",
            b'{"source": 1, "target": 2}',
            r"vocabulary\.json .*`kind` must be one",
        ),
        ("weights.safetensors", b"", "is not a file of this package's tensors"),
        ("weights.safetensors", b"\x80\x04pickled", "is not a file of this package's tensors"),
    ],
)
def test_damage_is_named(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    write_tensors(folder / "weights.safetensors", {"other": torch.zeros(1)}, {})
    with pytest.raises(FormatError, match="does not hold the weights of this model"):
        load(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    save(Seq2Seq(ARCHITECTURES["lstm"], LETTERS, LETTERS), folder)
    config["model"]["embedding"] = 7
    write_json(folder / "config.json", config)
    with pytest.raises(FormatError, match=r"of shape \(7, 6\), not \(7, 7\)"):
        load(folder)


def test_sizes_that_the_weights_do_not_have_take_no_memory(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["model"] |= {"hidden": 1_000_000, "feedforward": 4_000_000}
    write_json(folder / "config.json", config)
    with pytest.raises(FormatError, match="of shape"):
        load(folder)


def test_vocabularies_of_another_model_are_refused(folder: Path) -> None:
    other = Seq2Seq(ARCHITECTURES["lstm"], Characters("bca"), Characters("bca"))
    save(other, folder / "other")
    (folder / "vocabulary.json").write_bytes((folder / "other" / "vocabulary.json").read_bytes())
    with pytest.raises(FormatError, match=r"vocabulary\.json is damaged, or of another model"):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "weights.safetensors"])
def test_pipes_are_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(FormatError, match=f"{name} is not a regular file"):
        load(folder)


def test_what_nests_too_deep_is_named(folder: Path) -> None:
    (folder / "vocabulary.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(FormatError, match="nests too deep"):
        load(folder)
