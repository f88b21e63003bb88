"""The experiments with latent variables: every estimator trains, resumes, and is in the table."""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.bitvector_vae import train as bitvector
from experiments.bitvector_vae.__main__ import EXPERIMENT as BITVECTOR
from experiments.emergent_communication import features
from experiments.emergent_communication import train as game
from experiments.emergent_communication.__main__ import EXPERIMENT as GAME
from experiments.semisupervised_vae.__main__ import EXPERIMENT as SEMISUPERVISED

import fenchel
from experiments import images, latents, runs, summary

SMALL: dict[str, dict[str, Any]] = {
    "semisupervised_vae": {"labels": 20, "warm": 1},
    "bitvector_vae": {
        "bits": 6,
        "top_k": 4,
        "budget": 0.5,
        "levels": 2,
        "likelihood": 5,
        "samples": 5,
    },
    "emergent_communication": {"candidates": 4},
}
EXPERIMENTS = {e.name: e for e in (SEMISUPERVISED, BITVECTOR, GAME)}
CELLS = [(e, name) for e in EXPERIMENTS.values() for name in e.estimators]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 90 tiny classes of noise, 30 of them for validation."""
    monkeypatch.setattr(images, "VALIDATION", 30)
    monkeypatch.setattr(features, "STEPS", 3)
    folder = tmp_path / "noise"
    folder.mkdir()
    pixels = torch.randint(256, (90, 784), dtype=torch.uint8)
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 90, 28, 28)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(pixels.flatten().tolist()))
    head = bytes([0, 0, 8, 1]) + struct.pack(">I", 90)
    (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes(i % 10 for i in range(90)))
    return folder


def train(
    experiment: latents.Experiment, folder: Path, data: Path, estimator: str, epochs: int
) -> runs.History:
    options = {"lr": 1e-3, "batch": 16, "images": 60, "seed": 3, "device": "cpu"}
    extra = {"alpha": 1.0} if experiment is SEMISUPERVISED else {}
    extra |= {"entropy": 0.01} if experiment is GAME else {}
    return experiment.train(
        folder,
        data,
        estimator=estimator,
        epochs=epochs,
        **options,
        **extra,
        **SMALL[experiment.name],
    )


@pytest.mark.parametrize(
    ("experiment", "estimator"), CELLS, ids=[f"{e.name}-{name}" for e, name in CELLS]
)
def test_every_estimator_trains(
    experiment: latents.Experiment, estimator: str, data: Path, tmp_path: Path
) -> None:
    (record,) = train(experiment, tmp_path / "run", data, estimator, epochs=1)
    assert set(latents.FACTS) | set(experiment.figures) <= record.keys()
    assert all(torch.tensor(value).isfinite() for value in record.values())
    exact = ("sparsemax", "dense", "sparsemap", "sparsemap-budget")
    if estimator in exact:
        assert record["exact"] == 1
    elif estimator != "top-k":
        assert record["exact"] == 0
        assert record["calls"] == (2 if estimator in ("self-critic", "sum-and-sample") else 1)


@pytest.mark.parametrize("levels", [2, 5])
@pytest.mark.parametrize("estimator", ["sparsemap", "top-k", "gumbel"])
def test_the_elbo_has_two_parts(
    estimator: str, levels: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SMALL["bitvector_vae"], "levels", levels)
    (record,) = train(BITVECTOR, tmp_path / "run", data, estimator, epochs=1)
    assert record["elbo"] == pytest.approx(-record["distortion"] - record["rate"])
    most = SMALL["bitvector_vae"]["bits"] * math.log(2)
    least = most - math.log(4) if estimator == "top-k" else 0.0  # the entropy of 4 configurations
    assert least - 1e-5 <= record["rate"] <= most + 1e-5


def test_a_figure_that_older_runs_lack_is_a_dash() -> None:
    assert summary.spread_of([{"rate": 1.0}, {"rate": 3.0}], "rate") == "2.00 ± 1.41"
    assert summary.spread_of([{"rate": 1.0}, {"elbo": -3.0}], "rate") == "–"


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(
    experiment: latents.Experiment, data: Path, tmp_path: Path
) -> None:
    whole = train(experiment, tmp_path / "whole", data, "nvil", epochs=2)
    train(experiment, tmp_path / "parts", data, "nvil", epochs=1)
    parts = train(experiment, tmp_path / "parts", data, "nvil", epochs=2)
    for name in (experiment.measure, "loss", "calls"):
        assert [r[name] for r in whole] == pytest.approx([r[name] for r in parts], rel=1e-5)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_the_commands(
    experiment: latents.Experiment,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--data", str(data), "--quick", "--estimator", "gumbel", "--run", str(tmp_path / "r")]
    for name, value in {"epochs": 1, "images": 60, **SMALL[experiment.name]}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert experiment.main(words) == 0
    (folder,) = (tmp_path / "r").glob("gumbel*")
    pytest.importorskip("matplotlib")
    assert experiment.main(["table", str(folder), "--output", str(tmp_path / "out")]) == 0
    assert "| gumbel |" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert len(list((tmp_path / "out").glob("epochs*.png"))) == 1
    assert len(list((tmp_path / "out").glob("calls*.png"))) == 1
    assert experiment.main([*words[:1], str(tmp_path / "none"), *words[2:]]) == 1
    assert "error: " in capsys.readouterr().err


def test_runs_with_other_settings_have_rows_of_their_own(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--data", str(data), "--quick", "--epochs", "1", "--images", "60"]
    for name, value in SMALL["bitvector_vae"].items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    for rate, budget in (("0.1", "0.5"), ("0.2", "0.5"), ("0.2", "0.2")):
        folder = tmp_path / f"{rate}-{budget}"
        more = ["--lr", rate, "--budget", budget, "--run", str(folder)]
        assert BITVECTOR.main([*words, "--estimator", "sparsemap-budget", *more]) == 0
    found = sorted(tmp_path.glob("*/sparsemap-budget*"))
    assert BITVECTOR.main(["table", *map(str, found), "--output", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| estimator | bits | lr | budget | seeds |" in table
    for setting in ("0.1 | 0.5", "0.2 | 0.2", "0.2 | 0.5"):
        assert f"| sparsemap-budget | 6 | {setting} | 1 |" in table


def test_a_budget_is_a_share(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--data", str(data), "--quick", "--estimator", "sparsemap-budget", "--budget", "2"]
    assert BITVECTOR.main([*words, "--run", str(tmp_path / "run")]) == 1
    assert "`budget` must be above 0 and at most 1, got 2.0." in capsys.readouterr().err


def test_levels_of_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.tensor([0.0, 0.1, 0.24, 0.26, 0.5, 0.51, 1.0])
    assert bitvector.grey(pixels, 2).tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert bitvector.grey(pixels, 3).tolist() == [0, 0, 0, 1, 1, 1, 2]
    z, item = torch.randn(3, 6), torch.tensor([1, 0, 1])
    for levels in (2, 4):
        network = bitvector.BitvectorVae(6, levels)
        x = torch.randint(levels, (2, 784))
        scores = network.decoder(z)
        both = torch.stack([torch.zeros_like(scores), scores], -1)
        logs = (both if levels == 2 else scores).log_softmax(-1)
        wanted = -logs.gather(-1, x[item].unsqueeze(-1)).sum((1, 2))
        assert torch.allclose(network.loss(x)(item, z), wanted)
        monkeypatch.setattr(bitvector, "MAX_NUMBERS", 784 * 8)
        assert network.chunk == (8 if levels == 2 else 2)


@pytest.mark.parametrize("levels", [1, 257])
def test_levels_are_those_of_a_byte(levels: int, data: Path, tmp_path: Path, capsys) -> None:
    words = ["--data", str(data), "--quick", "--estimator", "gumbel", "--levels", str(levels)]
    assert BITVECTOR.main([*words, "--run", str(tmp_path / "run")]) == 1
    assert f"`levels` must be from 2 to 256, got {levels}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("experiment", "option", "text"),
    [
        (BITVECTOR, "--images 61", "`images` must be from 1 to 60, got 61."),
        (SEMISUPERVISED, "--images 50 --labels 61", "`labels` must be from 1 to 60, got 61."),
        (GAME, "--candidates 1", "`candidates` must be from 2 to 60, got 1."),
        (GAME, "--candidates 61", "`candidates` must be from 2 to 60, got 61."),
        (BITVECTOR, "--images=-5", "must be a whole number from 1 on, got '-5'"),
        (BITVECTOR, "--batch 0", "must be a whole number from 1 on, got '0'"),
        (SEMISUPERVISED, "--alpha nan", "must be a number, got 'nan'"),
        (SEMISUPERVISED, "--warm=-1", "must be a whole number from 0 on, got '-1'"),
        (GAME, "--jobs 0", "must be a whole number from 1 on, got '0'"),
    ],
)
def test_options_out_of_range(
    experiment: latents.Experiment, option: str, text: str, data: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [
        "--data",
        str(data),
        "--quick",
        "--estimator",
        "gumbel",
        "--run",
        str(tmp_path / "run"),
    ]
    if "--images" not in option:
        words += ["--images", "60"]
    if experiment is SEMISUPERVISED and "--labels" not in option:
        words += ["--labels", "20"]
    try:
        code = experiment.main([*words, *option.split()])
    except SystemExit as error:
        code = error.code
    assert code in (1, 2)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_a_run_stays_with_its_data(
    experiment: latents.Experiment, data: Path, tmp_path: Path
) -> None:
    train(experiment, tmp_path / "run", data, "gumbel", epochs=1)
    other = data.rename(data.with_name("others"))
    with pytest.raises(ValueError, match=r"holds a run with other data; name another"):
        train(experiment, tmp_path / "run", other, "gumbel", epochs=2)


@pytest.mark.slow
def test_estimators_train_side_by_side_as_in_turn(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "features.safetensors"
    save_file({"train": torch.rand(70, 5), "validation": torch.rand(30, 5)}, path)
    words = ["--data", str(path), "--quick", "--estimator", "sparsemax", "gumbel", "--epochs", "1"]
    words += ["--entropy", "0.2"]
    assert GAME.main([*words, "--run", str(tmp_path / "one")]) == 0
    assert GAME.main([*words, "--run", str(tmp_path / "two"), "--jobs", "2"]) == 0
    one, two = (runs.gather((tmp_path / name).iterdir()) for name in ("one", "two"))
    for alone, beside in zip(one, two, strict=True):
        (before,), (after,) = alone.pop("history"), beside.pop("history")
        assert alone == beside
        assert alone["entropy"] == 0.2
        assert before["loss"] == pytest.approx(after["loss"], rel=1e-4)
    assert GAME.main([*words[:5], "--run", str(tmp_path / "two"), "--jobs", "2"]) == 1


def test_a_search_gives_estimators_their_own_defaults() -> None:
    tuned = dataclasses.replace(GAME, tuned={"gumbel": {"lr": 0.5}})
    given = {"lr": None, "entropy": 0.2, "seed": 1, "minutes": None}
    assert tuned._options("gumbel", False, given)["lr"] == 0.5
    assert tuned._options("gumbel", False, {**given, "lr": 0.25})["lr"] == 0.25
    other = tuned._options("nvil", False, given)
    assert (other["lr"], other["entropy"], other["minutes"]) == (3e-4, 0.2, None)
    assert tuned._options("gumbel", True, given)["lr"] == 1e-3


def test_at_first_sparsemax_hears_many_symbols() -> None:
    torch.manual_seed(0)
    scores = game.Game(64).sender(torch.randn(20, 64))
    assert (fenchel.sparsemax(scores) > 0).sum(-1).float().mean() > 40


def test_the_target_is_among_the_candidates_once() -> None:
    pictures = torch.arange(50.0).unsqueeze(1)
    chosen = torch.arange(50)
    shown, place = game.rounds(pictures, chosen, candidates=6)
    own = (shown.squeeze(-1) == chosen.unsqueeze(1)).int()
    assert (own.sum(1) == 1).all()
    assert own.argmax(1).equal(place)


def test_features_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "vgg.safetensors"
    train = 5 + 2 * torch.randn(7, 3)
    train[:, 2] = 4.0
    save_file({"train": train, "validation": train[:4].clone()}, path)
    assert features.cached(path, tmp_path, "cpu") == path
    given, held = features.read(path, "cpu", images=5)
    assert (given.shape, held.shape) == ((5, 3), (4, 3))
    assert held.equal(given[:4])
    whole, _ = features.read(path, "cpu", images=7)
    assert torch.allclose(whole.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(whole.square().mean(0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-5)


def test_features_of_the_wrong_form(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "vgg.safetensors"
    save_file({"train": torch.ones(7, 3)}, path)
    with pytest.raises(ValueError, match="must hold the tensors `train` and `validation`"):
        features.read(path, "cpu", images=5)


def test_the_temperature_falls_and_stays_warm_enough() -> None:
    model = latents.Trained(torch.nn.Linear(1, 1), latents.CATEGORICAL["gumbel"](1))
    seen = []
    for start in (0, 4000, 10**6):
        model.steps.fill_(start)
        for _ in model.batches(7, 2, "cpu"):
            seen.append(model.estimator.temperature)
        assert model.steps == start + 4
    assert seen == pytest.approx([1.0] * 4 + [0.67032] * 4 + [0.5] * 4, abs=1e-5)
    assert latents.temperature(499) == 1.0 > latents.temperature(500)
