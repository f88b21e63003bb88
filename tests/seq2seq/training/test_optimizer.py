"""Optimizers, schedules and label smoothing: what they do, and that a stopped training goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import PAIRS, build

import inflected
from fenchel import seq2seq
from fenchel.seq2seq._files import read_tensors
from fenchel.seq2seq.config._schema import TrainingConfig
from fenchel.seq2seq.training._optimizer import Schedule, decayed, make_optimizer
from inflected import Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    return tmp_path


def rates(steps: int, max_steps: int | None = None, **plan: Any) -> list[float]:
    schedule = Schedule(TrainingConfig(learning_rate=0.5, **plan), max_steps)
    return [schedule.rate(step) for step in range(1, steps + 1)]


def test_the_inverse_square_root() -> None:
    found = rates(16, lr_schedule="inverse_square_root", warmup_steps=4)
    assert found[:4] == pytest.approx([0.125, 0.25, 0.375, 0.5])
    assert found[15] == pytest.approx(0.25)
    assert max(found) == 0.5
    assert rates(10_000, lr_schedule="inverse_square_root", min_lr_ratio=0.1)[-1] == 0.05


def test_the_cosine() -> None:
    found = rates(14, 12, lr_schedule="cosine", warmup_steps=2, min_lr_ratio=0.2)
    assert found[:2] == pytest.approx([0.25, 0.5])
    assert found[6] == pytest.approx(0.3)  # half of the way, in the middle of 0.5 and 0.1
    assert found[11:] == pytest.approx([0.1] * 3)
    assert found[1:12] == sorted(found[1:12], reverse=True)
    with pytest.raises(ValueError, match=r"is cosine, which ends at the last step; with `data.str"):
        rates(1, lr_schedule="cosine")


def test_a_warm_up_longer_than_the_training_goes_up() -> None:
    assert rates(3, 3, lr_schedule="cosine", warmup_steps=10) == pytest.approx([0.05, 0.1, 0.15])


def test_a_plateau_waits_and_decays() -> None:
    plan = TrainingConfig(learning_rate=1.0, lr_patience=1, lr_decay=0.5, min_lr_ratio=0.4)
    schedule = Schedule(plan, None)
    found = []
    for loss in (3.0, 2.0, 2.0, 2.5, 1.9, 2.0, 2.0, 2.0, 2.0):
        schedule.validated(loss)
        found.append(schedule.rate(100))
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4]


@pytest.mark.parametrize("shape", ["lstm", "transformer"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_decays(shape: str, tied: bool) -> None:
    model = build(shape, tie_embeddings=tied, embedding=6)
    chosen = decayed(model)
    assert not [name for name in chosen if "bias" in name or "norm" in name or "embedding" in name]
    assert ("output.weight" in chosen) != tied
    assert not [name for name in chosen if "core.encoder.layers" in name and "weight_ih" in name]
    assert any("weight" in name for name in chosen)


def test_decay_is_decoupled_from_the_gradient() -> None:
    plan = TrainingConfig(optimizer="adamw", weight_decay=0.5, learning_rate=0.1)
    model = build("lstm")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, plan, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name in decayed(model) else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_padding_still_changes_nothing_after_decay() -> None:
    plan = TrainingConfig(optimizer="adamw", weight_decay=100.0, learning_rate=0.005)
    model = build("lstm")
    optimizer = make_optimizer(model, plan, torch.device("cpu"))
    for _ in range(8):
        model.loss(PAIRS).backward()
        optimizer.step()
        optimizer.zero_grad()
    source, lengths = PAIRS.source[1:2], PAIRS.source_lengths[1:2]
    tokens = PAIRS.target[1:2, :-1]
    whole, _ = model(source, lengths, tokens)
    short, _ = model(source[:, : int(lengths)], lengths, tokens)
    torch.testing.assert_close(whole, short)


PLANS = {
    "inverse square root": {"lr_schedule": "inverse_square_root", "warmup_steps": 6},
    "cosine": {"lr_schedule": "cosine", "warmup_steps": 3, "optimizer": "adamw"},
    "plateau": {
        "warmup_steps": 5,
        "lr_patience": 0,
        "validate_every": 2,
        "validate_unit": "steps",
        "label_smoothing": 0.1,
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_training_goes_on_bit_by_bit(folder: Path, name: str) -> None:
    plan = {"checkpoint_every": 3, "steps": 12, **PLANS[name]}
    whole = seq2seq.train(inflected.config(folder, "whole", training=plan))
    with pytest.raises(KeyboardInterrupt):
        seq2seq.train(inflected.config(folder, "parts", training=plan), Recorder(stop=8))
    again = seq2seq.train(inflected.config(folder, "parts", training=plan))
    assert again.metrics == whole.metrics
    one, other = (read_tensors(folder / each / "last.safetensors") for each in ("whole", "parts"))
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(one[0][key], other[0][key]) for key in one[0])
    assert one[1]["schedule"] == other[1]["schedule"]


def test_a_longer_cosine_is_told(folder: Path) -> None:
    plan = {"lr_schedule": "cosine", "epochs": 1}
    seq2seq.train(inflected.config(folder, training=plan))
    callback = Recorder()
    seq2seq.train(inflected.config(folder, training={**plan, "epochs": 2}), callback)
    assert callback.notes[0].endswith("goes on with other values of training.epochs")


def test_the_smoothed_loss_is_that_of_the_scores() -> None:
    model = build("lstm", output="sparsemax")
    plain, smooth = (model.loss(PAIRS, "sum", smoothing) for smoothing in (0.0, 0.3))
    scores, _ = model(PAIRS.source, PAIRS.source_lengths, PAIRS.target[:, :-1])
    target = PAIRS.target[:, 1:]
    options = {"reduction": "sum", "ignore_index": 0}
    mapping = model.output.mapping
    torch.testing.assert_close(plain, mapping.loss(scores, target, **options))
    torch.testing.assert_close(smooth, mapping.loss(scores, target, **options, label_smoothing=0.3))
    assert not smooth.equal(plain)


@pytest.mark.parametrize("smoothing", [0.0, 0.99])
def test_no_smoothing_and_almost_nothing_else(folder: Path, smoothing: float) -> None:
    plan = {"epochs": 1, "label_smoothing": smoothing}
    summary = seq2seq.train(inflected.config(folder, training=plan))
    assert math.isfinite(summary.metrics.loss)
