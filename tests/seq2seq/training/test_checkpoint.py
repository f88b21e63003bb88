"""Checkpoints: a schedule that may change on the way, what is refused, and damage noticed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from safetensors.torch import save_file

import inflected
from fenchel import seq2seq
from fenchel.seq2seq._files import FormatError, read_tensors, write_tensors
from fenchel.seq2seq.config._schema import TrainingConfig
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def test_the_learning_rate_is_halved_on_a_plateau(folder: Path) -> None:
    plan = {"epochs": 4, "learning_rate": 1e-30, "early_stopping_patience": 9, "lr_patience": 0}
    seq2seq.train(inflected.config(folder, training=plan))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)


def rate(path: Path) -> float:
    return read_tensors(path / "last.safetensors")[1]["learning_rate"]


def test_the_learning_rate_keeps_above_its_floor(folder: Path) -> None:
    plan = {"epochs": 4, "learning_rate": 1e-30, "lr_patience": 0, "min_lr_ratio": 0.3}
    seq2seq.train(inflected.config(folder, training=plan))
    assert rate(folder / "model") == pytest.approx(0.3e-30)


def test_the_schedule_may_change_on_the_way(folder: Path) -> None:
    plan = {"learning_rate": 1e-30, "early_stopping_patience": 99, "min_lr_ratio": 0.0}
    first = {**plan, "epochs": 4, "lr_patience": 0}
    seq2seq.train(inflected.config(folder, training=first))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)
    patient = {**plan, "epochs": 8, "lr_patience": 9}
    seq2seq.train(inflected.config(folder, training=patient))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)
    higher = {**patient, "epochs": 9, "learning_rate": 1e-28}
    callback = Recorder()
    seq2seq.train(inflected.config(folder, training=higher), callback)
    assert callback.notes[0].endswith("goes on with other values of training.learning_rate")
    assert rate(folder / "model") == pytest.approx(1e-28 / 8)
    floored = {**higher, "epochs": 10, "min_lr_ratio": 0.5}
    seq2seq.train(inflected.config(folder, training=floored))
    assert rate(folder / "model") == pytest.approx(0.5e-28)


def test_the_default_schedule_does_not_starve_small_data() -> None:
    """A plateau is not the first bad validation, and a training outlasts several."""
    plan = TrainingConfig()
    assert plan.lr_patience > 0
    assert plan.early_stopping_patience > 2 * plan.lr_patience
    assert plan.min_lr_ratio > 0


def test_other_configurations_are_refused(folder: Path) -> None:
    seq2seq.train(inflected.config(folder))
    other = inflected.config(folder, model={"hidden": 18}, training={"seed": 1})
    with pytest.raises(
        ValueError, match=r"other values of model.feedforward, model.hidden, training.seed; ch"
    ):
        seq2seq.train(other)


def test_another_task_is_refused_before_its_data_are_read(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    text = {"source": str(folder / "verbs-dev"), "target": str(folder / "verbs-dev")}
    data = {"task": "translation", "train": text, "validation": text}
    with pytest.raises(ValueError, match=r"other values of data.task, data.train, data.validat"):
        seq2seq.train(inflected.config(folder, data=data))


def flip(path: Path, count: int, seed: int) -> None:
    """Changes a few bytes, anywhere after the first few, which say how long the header is."""
    content = bytearray(path.read_bytes())
    for place in random.Random(seed).sample(range(8, len(content)), count):
        content[place] ^= 0x41
    path.write_bytes(content)


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("name", ["last.safetensors", "weights.safetensors"])
def test_flipped_bytes_are_noticed(folder: Path, name: str, count: int) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    path = folder / "model" / name
    whole = path.read_bytes()
    for seed in range(20):
        path.write_bytes(whole)
        flip(path, count, seed)
        with pytest.raises(FormatError, match=f"{name} is (damaged|not a file of this)"):
            read_tensors(path)
    config = inflected.config(folder, training={"epochs": 2})
    use = (lambda: seq2seq.train(config)) if "last" in name else (lambda: seq2seq.load(path.parent))
    with pytest.raises(FormatError, match=name):
        use()


def test_checkpoints_go_with_their_vocabulary(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    path = folder / "model" / "vocabulary.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"b"', '"ß"'), encoding="utf-8")
    with pytest.raises(FormatError, match=r"vocabulary\.json is damaged, or of another model"):
        seq2seq.train(inflected.config(folder, training={"epochs": 2}))


def test_files_from_before_digests_are_taken(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1, "lr_patience": 0}))
    for name in ("last", "weights"):
        path = folder / "model" / f"{name}.safetensors"
        tensors, value = read_tensors(path)
        del value["vocabularies"]
        if name == "last":
            del value["progress"]["digests"]
            del value["config"]["training"]["min_lr_ratio"]
        save_file(tensors, path, metadata={"fenchel": json.dumps(value)})
    seq2seq.load(folder / "model")
    summary = seq2seq.train(inflected.config(folder, training={"epochs": 2, "lr_patience": 3}))
    assert summary.total_steps == 20


def test_damaged_checkpoints_are_refused(folder: Path) -> None:
    seq2seq.train(inflected.config(folder))
    path = folder / "model" / "last.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FormatError, match="is not a file of this package's tensors"):
        seq2seq.train(inflected.config(folder))


def test_a_checkpoint_that_is_a_pipe_is_refused(folder: Path) -> None:
    (folder / "model").mkdir()
    os.mkfifo(folder / "model" / "last.safetensors")
    with pytest.raises(FormatError, match=r"last\.safetensors is not a regular file"):
        seq2seq.train(inflected.config(folder))


def test_a_checkpoint_without_the_newer_keys_is_resumed(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    path = folder / "model" / "last.safetensors"
    tensors, value = read_tensors(path)
    config = value["config"]
    del config["evaluation"]
    for key in ("format", "source", "target", "features", "header", "unicode"):
        del config["data"][key]
    assert config["data"]["tokens"] == "subwords"
    del value["progress"]["best"]["scores"]
    write_tensors(path, tensors, value)
    assert seq2seq.train(inflected.config(folder, training={"epochs": 2})).total_steps == 20
