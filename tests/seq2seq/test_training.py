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
from safetensors.torch import save_file

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import DivergenceError, Listener
from fenchel.seq2seq._config import TrainingConfig
from fenchel.seq2seq._data import DataError
from fenchel.seq2seq._files import FormatError, read_tensors
from fenchel.seq2seq._validation import Metrics


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


class Recorder(Listener):
    """Keeps all that it hears, and stops training at a step if it is told to."""

    def __init__(self, stop: int | None = None) -> None:
        self.notes: list[str] = []
        self.losses: list[float] = []
        self.validations: list[Metrics] = []
        self.stop = stop

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stepped(self, progress: object, loss: float, rate: float) -> None:
        self.losses.append(loss)
        if len(self.losses) * 4 == self.stop:
            raise KeyboardInterrupt

    def validated(self, progress: object, metrics: Metrics, best: bool) -> None:
        self.validations.append(metrics)


def assert_same_tensors(one: Path, other: Path, name: str = "last.safetensors") -> None:
    first, second = read_tensors(one / name)[0], read_tensors(other / name)[0]
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key


def test_a_model_learns_the_language(folder: Path) -> None:
    listener = Recorder()
    settings = inflected.config(folder, model={"hidden": 48}, training={"epochs": 25})
    summary = seq2seq.train(settings, listener)
    assert summary.metrics.accuracy > 0.9
    assert summary.metrics.output_nonzeros < 2
    assert summary.reason == "25 epochs are done"
    assert listener.losses[-1] < listener.losses[0] / 5
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
    plan: dict[str, Any] = {"checkpoint_every": 3, "accumulate": accumulate}
    if accumulate > 1:
        plan |= {"validate_unit": "steps", "validate_every": 5}
    parts = {"data": data, "training": plan}
    whole = seq2seq.train(inflected.config(folder, "whole", **parts))
    with pytest.raises(KeyboardInterrupt):
        seq2seq.train(inflected.config(folder, "parts", **parts), Recorder(stop=stop))
    again = seq2seq.train(inflected.config(folder, "parts", **parts))
    assert again.metrics == whole.metrics
    assert (again.step, again.steps) == (whole.step, whole.steps)
    assert_same_tensors(folder / "whole", folder / "parts")
    assert_same_tensors(folder / "whole", folder / "parts", "weights.safetensors")
    assert rows(folder / "whole") == rows(folder / "parts")


def rows(path: Path) -> list[tuple[str, ...]]:
    with open(path / "log.csv", encoding="utf-8", newline="") as file:
        return [(row["step"], row["loss"], row["accuracy"]) for row in csv.DictReader(file)]


LONG = {"epochs": 12, "checkpoint_every": 2, "stop_after": 99}
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
    assert longer.steps == 30
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
        ({"minutes": 1e-9}, "1e-09 minutes are over", 1),
        (
            {"learning_rate": 1e-30, "stop_after": 2, "metric": "loss", "epochs": 9},
            "loss has not improved in 2 validations",
            30,
        ),
    ],
)
def test_limits(folder: Path, limits: dict[str, Any], reason: str, steps: int) -> None:
    summary = seq2seq.train(inflected.config(folder, training=limits))
    assert summary.reason == reason
    assert summary.steps == steps
    assert (folder / "model" / "weights.safetensors").exists()


def test_accumulated_batches_are_one_larger_batch(folder: Path) -> None:
    losses = []
    for name, size, accumulate in (("one", 160, 1), ("two", 16, 10)):
        listener = Recorder()
        plan = {"batch_size": size, "accumulate": accumulate, "steps": 4, "log_every": 1}
        settings = inflected.config(folder, name, model={"dropout": 0.0}, training=plan)
        seq2seq.train(settings, listener)
        losses.append(listener.losses)
    assert losses[0][0] > losses[0][-1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_the_learning_rate_is_halved_on_a_plateau(folder: Path) -> None:
    plan = {"epochs": 4, "learning_rate": 1e-30, "stop_after": 9, "patience": 0}
    seq2seq.train(inflected.config(folder, training=plan))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)


def rate(path: Path) -> float:
    return read_tensors(path / "last.safetensors")[1]["learning_rate"]


def test_the_learning_rate_keeps_above_its_floor(folder: Path) -> None:
    plan = {"epochs": 4, "learning_rate": 1e-30, "patience": 0, "floor": 0.3}
    seq2seq.train(inflected.config(folder, training=plan))
    assert rate(folder / "model") == pytest.approx(0.3e-30)


def test_the_schedule_may_change_on_the_way(folder: Path) -> None:
    plan = {"learning_rate": 1e-30, "stop_after": 99, "floor": 0.0}
    first = {**plan, "epochs": 4, "patience": 0}
    seq2seq.train(inflected.config(folder, training=first))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)
    patient = {**plan, "epochs": 8, "patience": 9}
    seq2seq.train(inflected.config(folder, training=patient))
    assert rate(folder / "model") == pytest.approx(1e-30 / 8)
    higher = {**patient, "epochs": 9, "learning_rate": 1e-28}
    listener = Recorder()
    seq2seq.train(inflected.config(folder, training=higher), listener)
    assert listener.notes[0].endswith("goes on with other values of training.learning_rate")
    assert rate(folder / "model") == pytest.approx(1e-28 / 8)
    floored = {**higher, "epochs": 10, "floor": 0.5}
    seq2seq.train(inflected.config(folder, training=floored))
    assert rate(folder / "model") == pytest.approx(0.5e-28)


def test_the_default_schedule_does_not_starve_small_data() -> None:
    """A plateau is not the first bad validation, and a training outlasts several."""
    plan = TrainingConfig()
    assert plan.patience > 0
    assert plan.stop_after > 2 * plan.patience
    assert plan.floor > 0


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
    listener = Recorder()
    summary = seq2seq.train(config(2), listener, allow_changed_data=True)
    assert summary.steps == 2 * first.steps
    assert [f"other pairs to {use}" in note for note in listener.notes] == [True]
    if name == "dev":  # chosen among the models that were validated with the new pairs
        assert summary.step > first.step
    seq2seq.train(config(3))


def test_a_finished_training_is_validated_with_new_pairs_if_allowed(folder: Path) -> None:
    first = seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    reversed_targets(folder / "verbs-dev")
    config = inflected.config(folder, training={"epochs": 1})
    again = seq2seq.train(config, allow_changed_data=True)
    assert again.metrics.loss > first.metrics.loss


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
    seq2seq.train(inflected.config(folder, training={"epochs": 1, "patience": 0}))
    for name in ("last", "weights"):
        path = folder / "model" / f"{name}.safetensors"
        tensors, value = read_tensors(path)
        del value["vocabularies"]
        if name == "last":
            del value["progress"]["digests"]
            del value["config"]["training"]["floor"]
        save_file(tensors, path, metadata={"fenchel": json.dumps(value)})
    seq2seq.load(folder / "model")
    summary = seq2seq.train(inflected.config(folder, training={"epochs": 2, "patience": 3}))
    assert summary.steps == 20


def test_damaged_checkpoints_are_refused(folder: Path) -> None:
    seq2seq.train(inflected.config(folder))
    path = folder / "model" / "last.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FormatError, match="is not a file of this package's tensors"):
        seq2seq.train(inflected.config(folder))


def test_two_trainings_do_not_share_a_folder(folder: Path) -> None:
    class Second(Recorder):
        def stepped(self, progress: object, loss: float, rate: float) -> None:
            with pytest.raises(BlockingIOError, match="another process is training in"):
                seq2seq.train(inflected.config(folder))
            self.losses.append(loss)

    listener = Second()
    seq2seq.train(inflected.config(folder, training={"steps": 4}), listener)
    assert listener.losses


def test_divergence_is_an_error(folder: Path) -> None:
    plan = {"learning_rate": 1e37, "clip": 1e37, "epochs": 9}
    with pytest.raises(DivergenceError, match=r"the loss is (nan|inf) at step \d+; lower"):
        seq2seq.train(inflected.config(folder, training=plan))


@pytest.mark.parametrize("rate", [1e3, 1e30])
@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax"])
def test_a_finite_loss_may_have_diverged(folder: Path, rate: float, output: str) -> None:
    plan = {"learning_rate": rate, "log_every": 1000}
    with pytest.raises(DivergenceError, match=r"at step \d+; lower"):
        seq2seq.train(inflected.config(folder, model={"output": output}, training=plan))
    assert not list((folder / "model").glob("*.safetensors"))


def test_a_diverged_training_goes_on_from_before(folder: Path) -> None:
    first = seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    before = {path.name: path.read_bytes() for path in (folder / "model").glob("*.safetensors")}
    with pytest.raises(DivergenceError, match="the same command goes on from there"):
        seq2seq.train(inflected.config(folder, training={"epochs": 2, "learning_rate": 1e30}))
    assert before == {
        path.name: path.read_bytes() for path in (folder / "model").glob("*.safetensors")
    }
    again = seq2seq.train(inflected.config(folder, training={"epochs": 2}))
    assert again.steps == 2 * first.steps


def test_a_small_gamma_is_no_divergence(folder: Path) -> None:
    """It makes the loss of a guess small, too, which that of large scores is not."""
    output = {"mapping": "entmax", "alpha": 1.5, "gamma": 1e-6}
    summary = seq2seq.train(inflected.config(folder, model={"output": output}))
    assert summary.reason == "3 epochs are done"


def test_a_model_worse_than_a_guess_is_told(folder: Path) -> None:
    listener = Recorder()
    plan = {"learning_rate": 3.0, "epochs": 1}
    seq2seq.train(inflected.config(folder, training=plan), listener)
    (note,) = listener.notes
    assert "and a guess among all tokens" in note


def test_memory_is_counted_before_it_is_taken(folder: Path) -> None:
    model = {"hidden": 4_000_000}
    with pytest.raises(ValueError, match=r"takes [\d,.]+ GiB .* lower `model.hidden`, `model.emb"):
        seq2seq.train(inflected.config(folder, model=model))


def test_data_from_a_pipe_are_refused(folder: Path) -> None:
    (folder / "verbs-dev").unlink()
    os.mkfifo(folder / "verbs-dev")
    with pytest.raises(DataError, match="verbs-dev is a pipe or a device, and training reads"):
        seq2seq.train(inflected.config(folder))


def test_a_checkpoint_that_is_a_pipe_is_refused(folder: Path) -> None:
    (folder / "model").mkdir()
    os.mkfifo(folder / "model" / "last.safetensors")
    with pytest.raises(FormatError, match=r"last\.safetensors is not a regular file"):
        seq2seq.train(inflected.config(folder))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"nonsense\n1\n", b'step\n"' + b"x" * 200_000])
def test_a_damaged_log_stops_no_training(folder: Path, content: bytes) -> None:
    seq2seq.train(inflected.config(folder, training={"epochs": 1}))
    (folder / "model" / "log.csv").write_bytes(content)
    seq2seq.train(inflected.config(folder, training={"epochs": 2}))
    assert [step for step, _, accuracy in rows(folder / "model") if accuracy] == ["20"]


def test_divergence_reaches_no_file(folder: Path) -> None:
    """Between two lines of the log a validation, and a checkpoint, may come upon it first."""
    plan = {"learning_rate": 1e37, "clip": 1e37, "epochs": 9, "log_every": 1000}
    for change in ({}, {"checkpoint_every": 1}):
        with pytest.raises(DivergenceError, match=r"(nan|inf|not finite) at step \d+; lower"):
            seq2seq.train(inflected.config(folder, str(len(change)), training={**plan, **change}))
    for path in (*folder.glob("*/last.safetensors"), *folder.glob("*/weights.safetensors")):
        assert all(tensor.isfinite().all() for tensor in read_tensors(path)[0].values())


def test_the_only_language_is_that_of_all_files(folder: Path) -> None:
    for name in ("train", "dev"):
        (folder / f"verbs-{name}").rename(folder / f"{name}.tsv")
    files = {"train": [str(folder / "train.tsv")], "validation": [str(folder / "dev.tsv")]}
    plan = {"epochs": 1}
    summary = seq2seq.train(inflected.config(folder, data=files, training=plan))
    data = {**files, "language": "verbs"}
    named = seq2seq.train(inflected.config(folder, "named", data=data, training=plan))
    assert summary.metrics == named.metrics


@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_left_out_is_said(folder: Path, streaming: bool) -> None:
    with open(folder / "verbs-train", "a", encoding="utf-8") as file:
        file.write("nonsense\n" + "a" * 30 + "\tb\tV;INF\n")
    listener = Recorder()
    data = {"max_length": 20, "streaming": streaming, "buffer": 64}
    seq2seq.train(inflected.config(folder, data=data), listener)
    first, second = listener.notes
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
    listener = Recorder()
    seq2seq.train(settings, listener)
    assert listener.losses[-1] < listener.losses[0]
