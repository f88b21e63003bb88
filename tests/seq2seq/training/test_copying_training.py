"""Training with copying: unknown letters are copied, from the command's files to the output."""

from __future__ import annotations

from pathlib import Path

import pytest

import inflected
from fenchel import seq2seq
from fenchel.seq2seq._files import read_tensors
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_training_goes_on_bit_by_bit(folder: Path, architecture: str) -> None:
    model = {"architecture": architecture, "copy_source": True}
    data = {"vocabulary_size": 14, "streaming": architecture == "lstm", "buffer": 50}
    parts = {"model": model, "data": data}
    plan = {"steps": 12, "checkpoint_every": 3}
    seq2seq.train(inflected.config(folder, "whole", **parts, training=plan))
    stopped = inflected.config(folder, "parts", **parts, training=plan)
    with pytest.raises(KeyboardInterrupt):
        seq2seq.train(stopped, Recorder(stop=8))
    seq2seq.train(stopped)
    one, other = (
        read_tensors(folder / each / "last.safetensors")[0] for each in ("whole", "parts")
    )
    assert all(one[name].equal(other[name]) for name in one)
    assert [name for name in one if name.startswith("model.pointer.")]


def test_unknown_letters_of_a_lemma_are_copied(folder: Path) -> None:
    """The source vocabulary has no room for most letters, so they are learnt to be copied."""
    data = {"vocabulary_size": 18}
    model = {"copy_source": True, "hidden": 48, "dropout": 0.1}
    plan = {"epochs": 40, "validate_every": 8}
    summary = seq2seq.train(inflected.config(folder, data=data, model=model, training=plan))
    trained = seq2seq.load(summary.folder)
    assert trained.source.known.unknown("kam V;PST")
    results = seq2seq.decode(trained, ["kam V;PST", "dün V;PST"])
    outputs = [trained.target.decode(result.hypotheses[0].tokens) for result in results]
    assert outputs[0] == "kamed"
    assert "ü" in outputs[1]
    other = inflected.config(
        folder,
        "tuned",
        data=data,
        model=model,
        training={"start_from": str(summary.folder), "steps": 1},
    )
    assert seq2seq.train(other).metrics.accuracy > 0.3


def test_subwords_are_refused(folder: Path) -> None:
    files = {"source": str(folder / "verbs-train"), "target": str(folder / "verbs-train")}
    data = {"task": "translation", "train": files, "validation": files, "vocabulary_size": 60}
    with pytest.raises(
        ValueError, match=r"`model.copy_source` is for characters or words; subwords"
    ):
        inflected.config(folder, data=data, model={"copy_source": True})


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_rare_space_is_refused_like_a_frequent_one(tmp_path: Path, is_streaming: bool) -> None:
    """It falls out of a small vocabulary, and cannot be copied into a target of symbols."""
    path = tmp_path / "words.tsv"
    path.write_text("abcd\ta b c\n" * 9 + "a b\ta b\n", encoding="utf-8")
    config = seq2seq.Config.model_validate(
        {
            "data": {
                "task": "text",
                "train": [str(path)],
                "validation": [str(path)],
                "tokens": {"source": "characters", "target": "none"},
                "vocabulary_size": 8,
                "streaming": is_streaming,
            },
            "model": {"embedding": 4, "hidden": 4, "layers": 1, "copy_source": True},
            "training": {"folder": str(tmp_path / "model"), "device": "cpu", "epochs": 1},
        }
    )
    with pytest.raises(ValueError, match=r"only if no source has a space\. There is one in 'a b'"):
        seq2seq.train(config)
