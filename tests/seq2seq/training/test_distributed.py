"""Two processes train as one does with the doubled batch, by DDP and by FSDP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import inflected
from fenchel import seq2seq
from fenchel.seq2seq import Callback
from fenchel.seq2seq._files import read_tensors
from fenchel.seq2seq.training._distributed import World, device_of

RUN = """
import json, sys
from pathlib import Path
import torch
from fenchel import seq2seq
from test_distributed import Losses, settings

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
folder = Path(sys.argv[1])
for name in ("ddp", "fsdp", "transformer-fsdp"):
    losses, kind = Losses(), name.split("-")[-1]
    if name == "fsdp":  # stopped and resumed on the way
        seq2seq.train(settings(folder, name, 8, steps=5, distributed=kind), losses)
    seq2seq.train(settings(folder, name, 8, distributed=kind), losses)
    if losses.heard:
        Path(folder / f"{name}.json").write_text(json.dumps(losses.heard))
torch.distributed.destroy_process_group()
"""


class Losses(Callback):
    """Keeps the training losses of every step, and the metrics of every validation."""

    def __init__(self) -> None:
        self.heard: list[list[float]] = []

    def stepped(self, progress: object, loss: float, rate: float) -> None:
        self.heard.append([progress.step, loss])  # type: ignore[attr-defined]


def settings(folder: Path, name: str, size: int, **training: object) -> seq2seq.Config:
    # 160 pairs and one more: the last batch holds one pair, and one process none.
    plan = {"batch_size": size, "epochs": 1, "log_every": 1, "gradient_accumulation": 2}
    plan |= {"metric": "edit_distance", **training}
    model = {"dropout": 0.0, "architecture": "lstm"}
    if name.startswith("transformer"):
        model |= {"architecture": "transformer", "heads": 2, "layers": 2}
        plan |= {"learning_rate": 0.001}
    return inflected.config(folder, name, model=model, training=plan)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    inflected.write(folder)
    with open(folder / "verbs-train", "a", encoding="utf-8") as file:
        file.write("bab\tbabs\tV;3;SG\n")
    here = Path(__file__)
    path = os.pathsep.join([str(here.parent), str(here.parents[2]), *sys.path])
    run = folder / "run.py"
    run.write_text(RUN, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", str(run), str(folder)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[list[float]]]:
    heard = {}
    for name in ("alone", "transformer-alone"):
        losses = Losses()
        seq2seq.train(settings(folder, name, 16), losses)
        heard[name] = losses.heard
    return heard


@pytest.mark.parametrize("name", ["ddp", "fsdp", "transformer-fsdp"])
def test_losses_are_those_of_the_doubled_batch(
    folder: Path, alone: dict[str, list[list[float]]], name: str
) -> None:
    found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    expected = alone["transformer-alone" if name.startswith("transformer") else "alone"]
    assert [step for step, _ in found] == [step for step, _ in expected] == [1, 2, 3, 4, 5, 6]
    assert [loss for _, loss in found] == pytest.approx([x for _, x in expected], rel=5e-5)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.usefixtures("alone")
def test_weights_and_moments_are_the_same(folder: Path, kind: str) -> None:
    one, _ = read_tensors(folder / "alone" / "last.safetensors")
    other, _ = read_tensors(folder / kind / "last.safetensors")
    same = {name for name in one if name.startswith(("model.", "optimizer."))}
    assert same == {name for name in other if name.startswith(("model.", "optimizer."))}
    for name in same:
        torch.testing.assert_close(other[name], one[name], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("alone")
def test_metrics_are_the_same(folder: Path) -> None:
    _, metrics = read_tensors(folder / "alone" / "weights.safetensors")
    _, found = read_tensors(folder / "ddp" / "weights.safetensors")
    assert found.pop("vocabularies") == metrics.pop("vocabularies")
    scores = metrics.pop("scores")
    assert scores["edit_distance"] > 0
    assert found.pop("scores") == pytest.approx(scores, rel=1e-4)
    assert found == pytest.approx(metrics, rel=1e-4)
    _, sharded = read_tensors(folder / "fsdp" / "weights.safetensors")
    assert sharded["scores"] == pytest.approx(scores, rel=1e-4)
    assert seq2seq.load(folder / "fsdp").source.size > 4


def test_as_many_processes_must_go_on(folder: Path) -> None:
    with pytest.raises(ValueError, match="written by 2 processes, and this is one of 1"):
        seq2seq.train(settings(folder, "ddp", 8, distributed="ddp"))


def test_one_process_needs_no_others() -> None:
    world = World(0, 1, torch.device("cpu"))
    tensor = torch.ones(2)
    assert world.sum(tensor) is tensor
    assert world.gather(tensor)[0] is tensor
    assert world.broadcast(0.1) == 0.1
    world.wait()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    assert device_of("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="PyTorch sees no GPU; try auto"):
        device_of("cuda")
