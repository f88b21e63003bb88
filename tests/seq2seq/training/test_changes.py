"""Data that change on the way are refused, or allowed by those who mean it."""

from __future__ import annotations

from pathlib import Path

import pytest

import inflected
from fenchel import seq2seq
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def test_other_data_under_the_same_name_are_refused(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    with open(folder / "verbs-train", "a", encoding="utf-8") as file:
        file.write("bal\tbals\tV;3;SG\n")
    with pytest.raises(ValueError, match=r"began with \[160, 32\] .* now hold \[161, 32\]; choose"):
        seq2seq.train(inflected.config(folder, training={"epochs": 2}))


def reversed_targets(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    columns = [line.split("\t") for line in lines]
    text = "".join(f"{lemma}\t{form[::-1]}\t{tags}\n" for lemma, form, tags in columns)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("name", "use"), [("train", "train on"), ("dev", "validate with")])
def test_data_changed_on_the_way_are_refused_or_allowed(
    folder: Path, streaming: bool, name: str, use: str
) -> None:
    def config(epochs: int) -> seq2seq.Config:
        data = {"streaming": streaming, "buffer": 50}
        return inflected.config(folder, data=data, training={"epochs": epochs})

    first = seq2seq.train(config(1))
    before = (folder / "model" / "last.safetensors").read_bytes()
    reversed_targets(folder / f"verbs-{name}")
    with pytest.raises(ValueError, match=f"other pairs to {use} .*add --allow-changed-data"):
        seq2seq.train(config(2))
    assert (folder / "model" / "last.safetensors").read_bytes() == before
    callback = Recorder()
    summary = seq2seq.train(config(2), callback, allow_changed_data=True)
    assert summary.total_steps == 2 * first.total_steps
    assert [f"other pairs to {use}" in note for note in callback.notes] == [True]
    if name == "dev":  # chosen among the models that were validated with the new pairs
        assert summary.best_step > first.best_step
    seq2seq.train(config(3))


def test_a_finished_training_is_validated_with_new_pairs_if_allowed(folder: Path) -> None:
    first = seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    reversed_targets(folder / "verbs-dev")
    config = inflected.config(folder, training={"epochs": 1})
    again = seq2seq.train(config, allow_changed_data=True)
    assert again.metrics.loss > first.metrics.loss
