"""The mean of the best validated models: what it is, when it is the model, and after a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import Metrics
from fenchel.seq2seq._files import read_tensors
from fenchel.seq2seq.training import _validation
from inflected import Recorder

PLAN = {"steps": 8, "validate_every": 2, "validate_unit": "steps", "metric": "loss"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def train(folder: Path, name: str, *callbacks: Recorder, **plan: Any) -> seq2seq.Summary:
    config = inflected.config(folder, name, training={**PLAN, **plan})
    return seq2seq.train(config, *callbacks)


def weights(folder: Path, name: str = "weights.safetensors") -> dict[str, torch.Tensor]:
    return read_tensors(folder / name)[0]


def prefer(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    """Gives a model that is not in training, as the mean is, this loss."""
    validate = _validation.validate
    calls = []

    def counted(*arguments: Any) -> Metrics:
        found = validate(*arguments)
        calls.append(found)
        return found if len(calls) <= 4 else replace(found, loss=loss)

    monkeypatch.setattr(_validation, "validate", counted)


@pytest.mark.parametrize("k", [2, 9])
def test_a_better_mean_is_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    prefer(monkeypatch, 0.0)
    summary = train(folder, "model", average_checkpoints=k)
    files = sorted(int(path.stem) for path in (folder / "model" / "checkpoints").iterdir())
    assert files == ([6, 8] if k == 2 else [2, 4, 6, 8])
    assert (summary.averaged, summary.metrics.loss) == (len(files), 0.0)
    kept = [weights(folder / "model" / "checkpoints", f"{step}.safetensors") for step in files]
    for name, mean in weights(folder / "model").items():
        expected = torch.stack([each[name] for each in kept]).mean(0)
        torch.testing.assert_close(mean, expected)
    assert seq2seq.load(folder / "model").target.size > 4


def test_a_worse_mean_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, 99.0)
    summary = train(folder, "averaged", average_checkpoints=3)
    monkeypatch.undo()
    alone = train(folder, "alone")
    assert (summary.averaged, summary.metrics) == (1, alone.metrics)
    one, other = weights(folder / "averaged"), weights(folder / "alone")
    assert all(one[name].equal(other[name]) for name in one)
    assert not (folder / "alone" / "checkpoints").exists()


def test_a_stopped_training_averages_the_same(folder: Path) -> None:
    train(folder, "whole", average_checkpoints=2)
    with pytest.raises(KeyboardInterrupt):
        train(folder, "parts", Recorder(stop=4), average_checkpoints=2)
    train(folder, "parts", average_checkpoints=2, steps=6)
    train(folder, "parts", average_checkpoints=2)
    for name in ("weights.safetensors", "last.safetensors"):
        one, other = weights(folder / "whole", name), weights(folder / "parts", name)
        assert all(one[key].equal(other[key]) for key in one), name


def test_no_more_than_one_validation_has_no_mean(folder: Path) -> None:
    summary = train(folder, "model", average_checkpoints=5, steps=2)
    assert summary.averaged == 1


def test_lost_weights_are_left_out(folder: Path) -> None:
    train(folder, "model", average_checkpoints=3)
    for path in (folder / "model" / "checkpoints").iterdir():
        path.unlink()
    assert train(folder, "model", average_checkpoints=3).averaged == 1
