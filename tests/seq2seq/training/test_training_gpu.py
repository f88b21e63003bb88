"""Training on a GPU: recorded steps are the steps, and a stopped training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import Callback

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Losses(Callback):
    def __init__(self) -> None:
        self.heard: list[float] = []

    def stepped(self, progress: object, loss: float, rate: float) -> None:
        self.heard.append(loss)


def losses(folder: Path, name: str, **training: object) -> list[float]:
    callback = Losses()
    plan = {"device": "cuda", "epochs": 4, **training}
    settings = inflected.config(folder, name, model={"dropout": 0.0}, training=plan)
    seq2seq.train(settings, callback)
    return callback.heard


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_recorded_steps_are_the_steps(tmp_path: Path, precision: str) -> None:
    inflected.write(tmp_path)
    plain = losses(tmp_path, "plain", precision=precision, cuda_graphs=False)
    recorded = losses(tmp_path, "recorded", precision=precision)
    assert recorded == pytest.approx(plain, rel=1e-3 if precision == "float32" else 0.05)
    assert plain[-1] < plain[0]


def test_recorded_steps_copy_and_smooth(tmp_path: Path) -> None:
    inflected.write(tmp_path)
    heard = []
    for name, graphs in (("plain", False), ("recorded", True)):
        callback = Losses()
        plan = {
            "device": "cuda", "epochs": 4, "cuda_graphs": graphs, "label_smoothing": 0.1,
            "optimizer": "adamw", "lr_schedule": "cosine", "warmup_steps": 5,
        }  # fmt: skip
        model = {"dropout": 0.0, "copy_source": True}
        data = {"vocabulary_size": 16}
        seq2seq.train(
            inflected.config(tmp_path, name, model=model, data=data, training=plan), callback
        )
        heard.append(callback.heard)
    assert heard[1] == pytest.approx(heard[0], rel=1e-3)
    assert heard[0][-1] < heard[0][0]


def test_a_stopped_training_goes_on(tmp_path: Path) -> None:
    inflected.write(tmp_path)
    whole = losses(tmp_path, "whole")
    first = losses(tmp_path, "parts", steps=20)
    rest = losses(tmp_path, "parts")
    assert [*first, *rest] == pytest.approx(whole, rel=1e-3)
