"""A run that was killed goes on as if it had not been."""

from __future__ import annotations

import gzip
import json
import math

import pytest
import torch
from torch import nn

from experiments import command, files, runs, summary


def fit(folder, epochs, fail_in=None, minutes=None, diverge_in=None):
    """Fits a line; `fail_in` kills the run in that epoch, in `diverge_in` the loss is NaN."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    count = 0

    def train():
        nonlocal count
        count += 1
        for _ in range(3):
            x = torch.randn(4, 3)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        if count == fail_in:
            raise KeyboardInterrupt
        return math.nan if count == diverge_in else loss.item()

    def evaluate():
        return {"score": -float((model.weight - 1).square().sum()), "bias": model.bias.item()}

    history = runs.fit(
        folder,
        model,
        optimizer,
        epochs=epochs,
        seed=3,
        train=train,
        evaluate=evaluate,
        measure="score",
        decay=0.5,
        minutes=minutes,
    )
    return model, history


def without_times(history):
    return [
        {key: value for key, value in record.items() if "seconds" not in key} for record in history
    ]


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        runs.open_run(folder, {"seed": 3})
    model, history = fit(whole, 6)
    with pytest.raises(KeyboardInterrupt):
        fit(killed, 6, fail_in=4)
    assert len(runs.read_history(killed)) == 3
    again, resumed = fit(killed, 6)
    assert without_times(resumed) == without_times(history)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_a_run_whose_loss_is_not_finite_fails_and_keeps_the_epochs_before(tmp_path):
    with pytest.raises(ValueError, match=r"the loss of epoch 3 is nan in .*; use a smaller"):
        fit(tmp_path, 6, diverge_in=3)
    assert len(runs.read_history(tmp_path)) == 2
    assert len(fit(tmp_path, 6)[1]) == 6


def test_a_run_ends_after_the_epoch_in_which_its_time_does(tmp_path):
    _, history = fit(tmp_path, 3, minutes=1e-9)
    assert len(history) == 1
    _, history = fit(tmp_path, 3, minutes=60)
    assert len(history) == 3
    with pytest.raises(ValueError, match="`minutes` must be greater than 0, got 0"):
        fit(tmp_path, 3, minutes=0)


def test_a_history_is_read_without_the_weights(tmp_path):
    runs.open_run(tmp_path / "run", {"seed": 3})
    _, history = fit(tmp_path / "run", 2)
    (tmp_path / "run" / "state.safetensors").unlink()
    (tmp_path / "run" / "best.safetensors").unlink()
    (tmp_path / "features").touch()
    (found,) = runs.gather([tmp_path / "run", tmp_path / "features"])
    assert found == {"seed": 3, "history": history}


def test_the_best_model_is_left_loaded(tmp_path):
    model, history = fit(tmp_path, 5)
    best = max(history, key=lambda record: record["score"])
    assert model.bias.item() == best["bias"]


def test_the_learning_rate_decays_after_a_bad_epoch_and_is_kept(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    scores = iter([1.0, 2.0, 1.5, 1.7])

    def run(epochs):
        optimizer = torch.optim.SGD(model.parameters(), 0.8)
        runs.fit(
            tmp_path,
            model,
            optimizer,
            epochs=epochs,
            seed=1,
            train=lambda: 0.0,
            evaluate=lambda: {"score": next(scores)},
            measure="score",
            decay=0.5,
        )
        return optimizer.param_groups[0]["lr"]

    assert run(2) == 0.8
    assert run(3) == 0.4
    assert run(4) == 0.2


def test_a_folder_belongs_to_one_run(tmp_path):
    runs.open_run(tmp_path, {"loss": "crf", "seed": 1})
    runs.open_run(tmp_path, {"loss": "crf", "seed": 1})
    with pytest.raises(ValueError, match="holds a run with other loss, lr; name another"):
        runs.open_run(tmp_path, {"loss": "svm", "seed": 1, "lr": 0.1})
    assert json.loads((tmp_path / "options.json").read_text()) == {"loss": "crf", "seed": 1}


@pytest.mark.parametrize("text", ['{"seed": ', "[]", "\xff"])
def test_damaged_options_are_named(tmp_path, text):
    (tmp_path / "options.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"options\.json is damaged: "):
        runs.open_run(tmp_path, {"seed": 1})


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    files.write(path, b"old")
    with pytest.raises(TypeError):
        files.write(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_lines_are_read_plain_or_compressed(tmp_path):
    (tmp_path / "plain").write_bytes("ä\r\nb".encode())
    (tmp_path / "packed.gz").write_bytes(gzip.compress("ä\nb\n".encode()))
    assert list(files.lines(tmp_path / "plain")) == ["ä", "b"]
    assert list(files.lines(tmp_path / "packed.gz")) == ["ä", "b"]


def test_find_wants_one_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"one file named dev, ending in \.txt; found \[\]"):
        files.find(tmp_path, ["dev"], [".txt"])
    for name in ("a-dev.txt", "a-dev.json", "a-train.txt"):
        (tmp_path / name).touch()
    assert files.find(tmp_path, ["dev", "trial"], [".txt"]).name == "a-dev.txt"
    (tmp_path / "b-trial.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"found \['a-dev.txt', 'b-trial.txt'\]"):
        files.find(tmp_path, ["dev", "trial"], [".txt"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_hold_every_index_once(shuffle):
    lengths = torch.randint(1, 30, (103,)).tolist()
    cut = list(runs.batches(lengths, 4, shuffle))
    assert sorted(index for batch in cut for index in batch) == list(range(103))
    assert max(map(len, cut)) == 4
    if not shuffle:
        assert [lengths[index] for batch in cut for index in batch] == sorted(lengths)
    assert list(runs.batches([], 4, shuffle)) == []


def test_runs_without_an_epoch_are_not_gathered(tmp_path):
    runs.open_run(tmp_path / "new", {"seed": 1})
    with pytest.raises(ValueError, match="no run has finished an epoch"):
        runs.gather([tmp_path / "new"])
    fit(tmp_path / "new", 1)
    assert [run["seed"] for run in runs.gather([tmp_path / "new"])] == [1]


def test_nothing_is_loaded_from_a_run_without_an_epoch(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold a run with a finished epoch; train it"):
        runs.load_best(tmp_path, nn.Linear(1, 1))
    with pytest.raises(ValueError, match="`epochs` must be at least 1, got 0"):
        fit(tmp_path, 0)


def test_summaries():
    members = [
        {
            "seed": 1,
            "history": [{"cpu_seconds": 1.0, "uas": 5.0}, {"cpu_seconds": 3.0, "uas": 4.0}],
        },
        {"seed": 2, "history": [{"cpu_seconds": 2.0, "uas": 7.0}]},
    ]
    assert summary.epochs(members) == "1–2"
    assert summary.seconds(members) == 2.0
    assert [record["uas"] for record in summary.best(members, "uas")] == [5.0, 7.0]
    assert summary.spread([5.0, 7.0]) == "6.00 ± 1.41"
    assert summary.spread([5.0]) == "5.00"


def test_commands_report_errors_without_a_traceback(capsys):
    import argparse

    def fail(word):
        raise ValueError(f"{word} is wrong")

    parser = argparse.ArgumentParser()
    train = parser.add_subparsers(required=True).add_parser("train")
    train.set_defaults(command=fail)
    train.add_argument("--word")
    assert command.run(parser, ["--word", "this"]) == 1
    assert capsys.readouterr().err == "error: this is wrong\n"
