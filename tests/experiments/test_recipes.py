"""The recipes of the experiments find their files, train, score, and say what failed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from experiments.inflection import __main__ as inflection
from experiments.inflection import data, paper
from experiments.translation import __main__ as translation

import inflected
from experiments import jobs, recipe, tables
from fenchel.seq2seq import load_config

SMALL = [
    "model.hidden=8",
    "model.embedding=8",
    "model.layers=1",
    "training.epochs=1",
    "training.device=cpu",
    "training.precision=float32",
]


@pytest.fixture
def shared_task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    lines = inflected.lines()
    for language in ("old-verbs", "verbs"):
        (folder / f"{language}-train-low").write_text("\n".join(lines[::4]), encoding="utf-8")
        (folder / f"{language}-dev").write_text("\n".join(lines[1::20]), encoding="utf-8")
        covered = ["\t".join(line.split("\t")[::2]) for line in lines[2::40]]
        (folder / f"{language}-covered-test").write_text("\n".join(covered), encoding="utf-8")
    return folder


def test_archives_are_unpacked_once(shared_task: Path, tmp_path: Path) -> None:
    archive = tmp_path / "task.tar.xz"
    with tarfile.open(archive, "w:xz") as file:
        file.add(shared_task, "task")
    into = tmp_path / "into"
    folder = data.unpacked(archive, into)
    assert data.languages(folder, "low") == ["old-verbs", "verbs"]
    (folder / "verbs-dev").write_text("mine", encoding="utf-8")
    assert data.unpacked(archive, into) == folder
    assert (folder / "verbs-dev").read_text(encoding="utf-8") == "mine"
    assert data.unpacked(shared_task, into) == shared_task
    with pytest.raises(FileNotFoundError, match="LANGUAGE-train-high"):
        data.languages(folder, "high")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="LANGUAGE-dev"):
        data.unpacked(tmp_path / "empty", into)


def test_the_inflection_recipe(
    shared_task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    arguments = ["run", str(shared_task), "--setting", "low", "--points", "1.5:2"]
    arguments += ["--seeds", "0", "--output", str(output), "--set", *SMALL]
    assert inflection.main(arguments) == 0
    assert "| 1.5 | 2 | 0 |" in capsys.readouterr().out
    found = json.loads((output / "results-low.json").read_text(encoding="utf-8"))
    (result,) = found["results"]
    assert result["languages"].keys() == {"old-verbs", "verbs"}
    assert result["training"]["epochs"] == 1
    assert "| 1.5 | 2 | 0 |" in (output / "results-low.md").read_text(encoding="utf-8")
    with tarfile.open(output / "predictions" / "low-1.5-2-0.tar.gz") as archive:
        assert archive.getnames() == ["old-verbs-low-out", "verbs-low-out"]
    model = str(output / "low-1.5-2-0")
    words = ["predict", str(shared_task), "--setting", "low", "--model", model, model]
    assert inflection.main([*words, "--output", str(tmp_path / "out")]) == 0
    written = (tmp_path / "out" / "old-verbs-low-out").read_text(encoding="utf-8").splitlines()
    test = (shared_task / "old-verbs-covered-test").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[::2] for line in written] == [line.split("\t") for line in test]


@pytest.mark.slow
def test_an_ensemble_without_predictions(shared_task: Path, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    arguments = ["run", str(shared_task), "--setting", "low", "--points", "1:1", "--no-predictions"]
    arguments += ["--seeds", "0", "1", "--output", str(output), "--set", *SMALL]
    assert inflection.main(arguments) == 0
    found = json.loads((output / "results-low.json").read_text(encoding="utf-8"))
    assert [result["seed"] for result in found["results"]] == ["0", "1", "ensemble"]
    assert not (output / "predictions").exists()


def test_covered_files_are_read_or_refused_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "verbs-covered-test"
    path.write_text("draw\tV;PST\n\nsee\tV\n", encoding="utf-8")
    assert data.covered(tmp_path, "verbs") == ["draw\tV;PST\tverbs", "see\tV\tverbs"]
    path.write_text("draw\tV;PST\nsee\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"verbs-covered-test, line 2: expected 2 columns"):
        data.covered(tmp_path, "verbs")


def test_points_and_mappings() -> None:
    assert inflection._points("1:1,1.5:2") == [(1.0, 1.0), (1.5, 2.0)]
    with pytest.raises(SystemExit):
        inflection.main(["run", "x", "--points", "1"])
    assert recipe.mapping(1.0) == "softmax"
    assert recipe.mapping(1.25) == {"mapping": "entmax", "alpha": 1.25}


def test_the_paper_has_every_point() -> None:
    for table in (paper.AVERAGE, paper.ENSEMBLE):
        for points in table.values():
            assert {output for output, _ in points} == set(inflection.ALPHAS)
            assert len(points) == 9


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inflection.main(["run", str(tmp_path)]) == 1
    assert "holds no files named LANGUAGE-dev" in capsys.readouterr().err
    assert translation.main(["timing", str(tmp_path)]) == 1
    assert "neither train.de nor train.de.gz" in capsys.readouterr().err


def test_failing_jobs_are_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = jobs.Job("bad", [["fenchel", "train", "missing.yaml"]], tmp_path / "bad" / "log")
    idle = jobs.Job("idle", [], tmp_path / "log")
    idle.log.write_text("earlier", encoding="utf-8")
    assert jobs.run([bad, idle], 2) == [bad]
    assert idle.log.read_text(encoding="utf-8") == "earlier"
    assert "No such file" in bad.log.read_text(encoding="utf-8")
    assert "bad: failed; see" in capsys.readouterr().err


@pytest.fixture
def multi30k(tmp_path: Path) -> Path:
    texts = {"de": "ein Mann fährt", "en": "a man rides"}
    for split, count in (("train", 40), ("val", 4)):
        for language, text in texts.items():
            path = tmp_path / f"{split}.{language}"
            path.write_text(f"{text}\n" * count, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("gamma", ["1", "4"])
def test_the_time_of_an_epoch(
    multi30k: Path, gamma: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [*SMALL, "data.tokens=words", "training.batch_size=10"]
    arguments = ["timing", str(multi30k), "--output", str(multi30k / "out")]
    arguments += ["--gamma", gamma, "--steps", "2", "--rounds", "1", "--set", *small]
    assert translation.main(arguments) == 0
    found = json.loads((multi30k / "out" / "results-timing.json").read_text(encoding="utf-8"))
    assert found["seconds"].keys() == set(translation.ATTENTIONS)
    assert min(found["seconds"].values()) > 0
    assert "| softmax |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_translation_recipe(multi30k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = [str(multi30k), "--output", str(multi30k / "out"), "--jobs", "2"]
    small = ["--set", *SMALL, "data.tokens=words"]
    one = ["--directions", "en-de", "--alphas", "1.5"]
    assert translation.main(["run", *shared, *one, *small]) == 0
    assert "| en-de | 1.5 | 0 |" in capsys.readouterr().out
    strength = ["--gamma", "4"]
    assert translation.main(["attention", *shared, *strength, *small]) == 0
    assert "| oscarmax | 0 |" in capsys.readouterr().out
    assert translation.main(["pictures", *shared[:3], *strength, "--sentences", "1"]) == 0
    assert len(list((multi30k / "out" / "pictures").iterdir())) == 5
    assert translation.main(["pictures", *shared[:3], "--gamma", "7"]) == 1
    assert "holds no model; train some with `attention`." in capsys.readouterr().err


@pytest.mark.parametrize("recipe", [inflection, translation])
def test_configurations_can_be_used(recipe: object) -> None:
    files = "[a]" if recipe is inflection else "{source: a, target: b}"
    overrides = [f"data.train={files}", f"data.validation={files}"]
    config = load_config(recipe.CONFIG, overrides)  # type: ignore[attr-defined]
    assert config.model.layers == 2
    assert config.search.beam == 5


def test_tables_are_markdown() -> None:
    table = tables.markdown(("a", "b"), [[1, 2.0], ["x", None]])
    assert table == "| a | b |\n| --- | --- |\n| 1 | 2.00 |\n| x |  |"
