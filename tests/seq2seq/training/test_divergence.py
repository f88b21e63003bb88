"""A training that has gone wrong ends, and what was good stays."""

from __future__ import annotations

from pathlib import Path

import pytest

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import DivergenceError
from fenchel.seq2seq._files import read_tensors
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def test_divergence_is_an_error(folder: Path) -> None:
    plan = {"learning_rate": 1e37, "max_grad_norm": 1e37, "epochs": 9}
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
    assert again.total_steps == 2 * first.total_steps


def test_a_small_gamma_is_no_divergence(folder: Path) -> None:
    """It makes the loss of a guess small, too, which that of large scores is not."""
    output = {"mapping": "entmax", "alpha": 1.5, "gamma": 1e-6}
    summary = seq2seq.train(inflected.config(folder, model={"output": output}))
    assert summary.reason == "3 epochs are done"


def test_a_model_worse_than_a_guess_is_told(folder: Path) -> None:
    callback = Recorder()
    plan = {"learning_rate": 3.0, "epochs": 1}
    seq2seq.train(inflected.config(folder, training=plan), callback)
    (note,) = callback.notes
    assert "and a guess among all tokens" in note


def test_divergence_reaches_no_file(folder: Path) -> None:
    """Between two lines of the log a validation, and a checkpoint, may come upon it first."""
    plan = {"learning_rate": 1e37, "max_grad_norm": 1e37, "epochs": 9, "log_every": 1000}
    for change in ({}, {"checkpoint_every": 1}):
        with pytest.raises(DivergenceError, match=r"(nan|inf|not finite) at step \d+; lower"):
            seq2seq.train(inflected.config(folder, str(len(change)), training={**plan, **change}))
    for path in (*folder.glob("*/last.safetensors"), *folder.glob("*/weights.safetensors")):
        assert all(tensor.isfinite().all() for tensor in read_tensors(path)[0].values())
