"""Training learns, ends when it should, and goes on bit by bit where it was stopped."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq._files import read_tensors
from fenchel.seq2seq.data._readers import DataError
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def assert_same_tensors(one: Path, other: Path, name: str = "last.safetensors") -> None:
    first, second = read_tensors(one / name)[0], read_tensors(other / name)[0]
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key


def test_a_model_learns_the_language(folder: Path) -> None:
    callback = Recorder()
    settings = inflected.config(folder, model={"hidden": 48}, training={"epochs": 25})
    summary = seq2seq.train(settings, callback)
    assert summary.metrics.accuracy > 0.9
    assert summary.metrics.output_nonzeros < 2
    assert summary.reason == "25 epochs are done"
    assert callback.losses[-1] < callback.losses[0] / 5
    model = seq2seq.load(summary.folder)
    source = torch.tensor([model.source.encode("kam V;PST")])
    (result,) = seq2seq.search(model, source, torch.tensor([source.shape[1]]))
    assert model.target.decode(result.hypotheses[0].tokens) == "kamed"


@pytest.mark.parametrize(("stop", "accumulate"), [(4, 1), (28, 1), (12, 2)])
@pytest.mark.parametrize("buffer", [None, 50])
def test_training_goes_on_bit_by_bit(
    folder: Path, stop: int, accumulate: int, buffer: int | None
) -> None:
    data = {} if buffer is None else {"streaming": True, "buffer": buffer}
    plan: dict[str, Any] = {"checkpoint_every": 3, "gradient_accumulation": accumulate}
    if accumulate > 1:
        plan |= {"validate_unit": "steps", "validate_every": 5}
    parts = {"data": data, "training": plan}
    whole = seq2seq.train(inflected.config(folder, "whole", **parts))
    with pytest.raises(KeyboardInterrupt):
        seq2seq.train(inflected.config(folder, "parts", **parts), Recorder(stop=stop))
    again = seq2seq.train(inflected.config(folder, "parts", **parts))
    assert again.metrics == whole.metrics
    assert (again.best_step, again.total_steps) == (whole.best_step, whole.total_steps)
    assert_same_tensors(folder / "whole", folder / "parts")
    assert_same_tensors(folder / "whole", folder / "parts", "weights.safetensors")
    assert rows(folder / "whole") == rows(folder / "parts")


def rows(path: Path) -> list[tuple[str, ...]]:
    with open(path / "log.csv", encoding="utf-8", newline="") as file:
        return [(row["step"], row["loss"], row["accuracy"]) for row in csv.DictReader(file)]


LONG = {"epochs": 12, "checkpoint_every": 2, "early_stopping_patience": 99}
RUN = f"""
import sys
from pathlib import Path
import torch
import inflected
from fenchel import seq2seq
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
seq2seq.train(inflected.config(Path(sys.argv[1]), "killed", training={LONG}))
"""


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_a_killed_process_goes_on_bit_by_bit(folder: Path) -> None:
    path = os.pathsep.join([str(Path(inflected.__file__).parent), *sys.path])
    command = [sys.executable, "-c", RUN, str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    checkpoint = folder / "killed" / "last.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    delay = random.SystemRandom().uniform(0.0, 0.25)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    step = read_tensors(checkpoint)[1]["progress"]["step"]
    assert 0 < step < 120, f"killed after {delay} s"
    for name in ("killed", "whole"):
        seq2seq.train(inflected.config(folder, name, training=LONG))
    assert_same_tensors(folder / "whole", folder / "killed")
    assert_same_tensors(folder / "whole", folder / "killed", "weights.safetensors")


def test_a_training_stopped_at_the_end_of_an_epoch_goes_on(folder: Path) -> None:
    whole = inflected.config(folder, "whole", training={"epochs": 4})
    first = inflected.config(folder, "parts", training={"epochs": 4, "steps": 20})
    rest = inflected.config(folder, "parts", training={"epochs": 4})
    for config in (whole, first, rest):
        seq2seq.train(config)
    assert_same_tensors(folder / "whole", folder / "parts")


def test_training_can_be_prolonged(folder: Path) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 2}))
    longer = seq2seq.train(inflected.config(folder, training={"epochs": 3}))
    assert longer.total_steps == 30
    seq2seq.train(inflected.config(folder, "whole", training={"epochs": 3}))
    assert_same_tensors(folder / "whole", folder / "model")


def test_a_finished_training_does_nothing(folder: Path) -> None:
    first = seq2seq.train(inflected.config(folder))
    before = (folder / "model" / "last.safetensors").stat().st_mtime_ns
    assert seq2seq.train(inflected.config(folder)).metrics == first.metrics
    assert (folder / "model" / "last.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("limits", "reason", "steps"),
    [
        ({"steps": 7}, "7 steps are done", 7),
        ({"steps": 1}, "1 step is done", 1),
        ({"minutes": 1e-9}, "1e-09 minutes are over", 1),
        (
            {"learning_rate": 1e-30, "early_stopping_patience": 2, "metric": "loss", "epochs": 9},
            "loss has not improved in 2 validations",
            30,
        ),
    ],
)
def test_limits(folder: Path, limits: dict[str, Any], reason: str, steps: int) -> None:
    summary = seq2seq.train(inflected.config(folder, training=limits))
    assert summary.reason == reason
    assert summary.total_steps == steps
    assert (folder / "model" / "weights.safetensors").exists()


def test_accumulated_batches_are_one_larger_batch(folder: Path) -> None:
    losses = []
    for name, size, accumulate in (("one", 160, 1), ("two", 16, 10)):
        callback = Recorder()
        plan = {"batch_size": size, "gradient_accumulation": accumulate, "steps": 4, "log_every": 1}
        settings = inflected.config(folder, name, model={"dropout": 0.0}, training=plan)
        seq2seq.train(settings, callback)
        losses.append(callback.losses)
    assert losses[0][0] > losses[0][-1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_two_trainings_do_not_share_a_folder(folder: Path) -> None:
    class Second(Recorder):
        def stepped(self, progress: object, loss: float, rate: float) -> None:
            with pytest.raises(BlockingIOError, match="another process is training in"):
                seq2seq.train(inflected.config(folder))
            self.losses.append(loss)

    callback = Second()
    seq2seq.train(inflected.config(folder, training={"steps": 4}), callback)
    assert callback.losses


def test_memory_is_counted_before_it_is_taken(folder: Path) -> None:
    model = {"hidden": 4_000_000}
    with pytest.raises(ValueError, match=r"takes [\d,.]+ GiB .* lower `model.hidden`, `model.emb"):
        seq2seq.train(inflected.config(folder, model=model))


def test_data_from_a_pipe_are_refused(folder: Path) -> None:
    (folder / "verbs-dev").unlink()
    os.mkfifo(folder / "verbs-dev")
    with pytest.raises(DataError, match="verbs-dev is a pipe or a device, and training reads"):
        seq2seq.train(inflected.config(folder))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"nonsense\n1\n", b'step\n"' + b"x" * 200_000])
def test_a_damaged_log_stops_no_training(folder: Path, content: bytes) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    (folder / "model" / "log.csv").write_bytes(content)
    seq2seq.train(inflected.config(folder, training={"epochs": 2}))
    assert [step for step, _, accuracy in rows(folder / "model") if accuracy] == ["20"]


def test_the_only_language_is_that_of_all_files(folder: Path) -> None:
    for name in ("train", "dev"):
        (folder / f"verbs-{name}").rename(folder / f"{name}.tsv")
    files = {"train": [str(folder / "train.tsv")], "validation": [str(folder / "dev.tsv")]}
    plan = {"epochs": 1}
    summary = seq2seq.train(inflected.config(folder, data=files, training=plan))
    data = {**files, "language": "verbs"}
    named = seq2seq.train(inflected.config(folder, "named", data=data, training=plan))
    assert summary.metrics == named.metrics


@pytest.mark.parametrize(("streaming", "times"), [(False, 1), (True, 4)])
def test_training_text_is_parsed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool, times: int
) -> None:
    """Streamed text is parsed for either vocabulary, and in each of two epochs."""
    opened: list[str] = []
    open_file = open

    def counted(path: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", counted)
    config = inflected.config(folder, data={"streaming": streaming}, training={"epochs": 2})
    seq2seq.train(config)
    assert opened.count(str(folder / "verbs-train")) == times
    assert opened.count(str(folder / "verbs-dev")) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_left_out_is_said(folder: Path, streaming: bool) -> None:
    with open(folder / "verbs-train", "a", encoding="utf-8") as file:
        file.write("nonsense\n" + "a" * 30 + "\tb\tV;INF\n")
    callback = Recorder()
    data = {"max_length": 20, "streaming": streaming, "buffer": 64}
    seq2seq.train(inflected.config(folder, data=data), callback)
    first, second = callback.notes
    assert "skipped 1 malformed lines" in first
    assert f"{folder / 'verbs-train'}, line 161: expected 3 columns" in first
    assert second == "left out 1 pairs of no token, or of more than 20 on a side"
    with pytest.raises(ValueError, match="line 161"):
        seq2seq.train(inflected.config(folder, "strict", data={"malformed": "error"}))


@pytest.mark.parametrize("streaming", [False, True])
def test_no_data_is_an_error(folder: Path, streaming: bool) -> None:
    data = {"max_length": 1, "streaming": streaming}
    with pytest.raises(ValueError, match="there is no pair to train on"):
        seq2seq.train(inflected.config(folder, data=data))
    (folder / "verbs-dev").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="there is no pair to validate with"):
        seq2seq.train(inflected.config(folder, "other"))


def test_the_log_and_the_configuration_are_written(folder: Path) -> None:
    seq2seq.train(inflected.config(folder))
    with open(folder / "model" / "log.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["step"] for row in table if row["accuracy"]] == ["10", "20", "30"]
    assert float(table[0]["loss"]) > 0
    assert list((folder / "model" / "events").iterdir())
    config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["training"]["batch_size"] == 16


def test_the_transformer_trains(folder: Path) -> None:
    model = {"architecture": "transformer", "hidden": 32, "heads": 2, "tie_embeddings": True}
    attention = {"mapping": "entmax", "alpha": 1.5, "learned_alpha": True}
    settings = inflected.config(folder, model={**model, "attention": attention})
    callback = Recorder()
    seq2seq.train(settings, callback)
    assert callback.losses[-1] < callback.losses[0]


def test_a_log_that_is_no_file_is_refused(tmp_path):
    from fenchel.seq2seq.training._log import Log

    os.mkfifo(tmp_path / "log.csv")
    with pytest.raises(ValueError, match="is not a regular file"):
        Log(tmp_path, 0)
