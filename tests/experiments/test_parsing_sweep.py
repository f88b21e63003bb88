"""A sweep tunes the learning rate of each loss, adds seeds, and goes on where it was stopped."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from experiments.dependency_parsing import sweep, table
from experiments.dependency_parsing.__main__ import RESULTS, main

from experiments import files, jobs, runs

BEST = {"svm": 0.001, "crf": 0.016}
EPOCHS = 2


class Machine:
    """Runs no process: a run's UAS falls with the distance of its rate from the best one."""

    def __init__(self) -> None:
        self.trained: list[str] = []

    def run(self, todo: Sequence[jobs.Job], num_parallel: int) -> list[jobs.Job]:
        for job in todo:
            for command in job.commands:
                words = dict(zip(command[2::2], command[3::2], strict=True))
                if command[1] == "train":
                    self.train(job.name, words)
                else:
                    Path(words["--output"]).write_bytes(b"")
        return []

    def train(self, name: str, words: dict[str, str]) -> None:
        self.trained.append(name)
        loss, lr, seed = words["--loss"], float(words["--lr"]), int(words["--seed"])
        options = {"data": "toy", "loss": loss, "lr": lr, "seed": seed, "batch": 16}
        folder = Path(words["--run"])
        runs.open_run(folder, options)
        uas = 80 - abs(math.log2(lr / BEST[loss])) - seed / 10
        record = {"uas": uas, "trees": 1.0, "heads": 1.0, "cpu_seconds": 1.0}
        history = [{**record, "epoch": epoch} for epoch in range(1, int(words["--epochs"]) + 1)]
        (folder / runs.HISTORY).write_text(json.dumps(history), encoding="utf-8")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(jobs, "run", machine.run)
    return machine


def arguments(folder: Path) -> list[str]:
    data = folder / "toy"
    data.mkdir(exist_ok=True)
    (data / "toy-covered-test.conllu").touch()
    words = ["sweep", "--data", str(data), "--run", str(folder / "runs"), "--losses", "svm", "crf"]
    return [*words, "--epochs", str(EPOCHS), "--seeds", "1", "2"]


def test_rates_at_the_end_of_the_grid_are_followed(machine: Machine, tmp_path: Path) -> None:
    assert main(arguments(tmp_path)) == 0
    tuned = [f"{loss}-{rate:g}-1" for rate in sweep.RATES for loss in ("svm", "crf")]
    assert machine.trained == [*tuned, "crf-0.016-1", "crf-0.032-1", "svm-0.001-2", "crf-0.016-2"]
    found = runs.gather((tmp_path / "runs").iterdir())
    rows = [line.split(" | ")[1:4] for line in table.table(found).splitlines()[2:]]
    assert rows == [["svm", "0.001", "2"], ["crf", "0.016", "2"]]
    assert "| toy | svm | 78.90 | 79.90 | 78.90 | 77.90 | 76.90 |  |  |" in table.page(found)


def test_what_is_finished_is_kept(machine: Machine, tmp_path: Path) -> None:
    assert main(arguments(tmp_path)) == 0
    machine.trained.clear()
    assert main(arguments(tmp_path)) == 0
    assert not machine.trained
    folder = tmp_path / "runs" / "svm-0.002-1"
    history = json.loads((folder / runs.HISTORY).read_text(encoding="utf-8"))
    (folder / runs.HISTORY).write_text(json.dumps(history[:1]), encoding="utf-8")
    (tmp_path / "runs" / "svm-0.001-2" / sweep.PREDICTIONS).unlink()
    assert main(arguments(tmp_path)) == 0
    assert machine.trained == ["svm-0.002-1", "svm-0.001-2"]


def test_published_figures_are_those_of_the_records() -> None:
    found = json.loads((RESULTS / "tuning.json").read_text(encoding="utf-8"))
    assert {len(run["history"]) for run in found} == {30}
    assert table.page(found) in (RESULTS / "tuning.md").read_text(encoding="utf-8")
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for row in table.table(found).splitlines()[2:]:
        assert row.split(" | ")[5] in page


def test_failed_runs_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "run", lambda todo, num_parallel: todo[:1])
    assert main(arguments(tmp_path)) == 1
    assert "svm-0.0005-1 failed; see the logs." in capsys.readouterr().err


def test_the_best_seed_of_the_best_rate_predicts(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(arguments(tmp_path)) == 0
    for folder in (tmp_path / "runs").iterdir():
        seed = folder.name[-1]
        words = [f"{i}\tword\t_\tX\t_\t_\t{head}\t_\t_\t_" for i, head in ((1, "0"), (2, seed))]
        lines = [*words, "", words[0], ""]
        files.write_lines(folder / sweep.PREDICTIONS, lines)
    monkeypatch.setattr(table, "draw", lambda found, output: None)
    output = tmp_path / "results"
    folders = [str(folder) for folder in (tmp_path / "runs").iterdir()]
    assert main(["table", *folders, "--output", str(output)]) == 0
    for loss in ("svm", "crf"):
        path = output / "predictions" / f"toy-{loss}.heads.gz"
        assert gzip.decompress(path.read_bytes()) == b"0 1\n0\n"
