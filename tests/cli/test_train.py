"""`fenchel train` and `fenchel evaluate`: help, exit codes, and what they print."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import inflected
from fenchel.cli import main
from fenchel.seq2seq.config import _loading


@pytest.fixture
def config(tmp_path: Path) -> Path:
    inflected.write(tmp_path)
    path = tmp_path / "config.yaml"
    values = inflected.config(tmp_path, training={"epochs": 2}).model_dump(mode="json")
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.fixture
def model(config: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["train", str(config), "--quiet"]) == 0
    capsys.readouterr()
    return config.parent / "model"


def test_training_prints_progress_and_a_summary(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "training.epochs=3", "model.attention=softmax"]) == 0
    out, err = capsys.readouterr()
    assert "Training is over: 3 epochs are done" in out
    assert "accuracy" in out
    assert "source positions" in out
    assert "step 10, epoch 1: accuracy" in err
    assert main(["train", str(config), "training.epochs=3", "model.attention=softmax"]) == 0
    assert "resuming from step 30" in capsys.readouterr().err


@pytest.mark.parametrize("name", _loading.TASKS)
def test_examples_are_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--example", name]) == 0
    assert capsys.readouterr().out == _loading.example(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a configuration file; `--example` prints one"),
        (["{config}", "model.layers=x"], "model.layers: must be an integer, got 'x'"),
        (["{config}", "nonsense"], "an override is `section.key=value`"),
        (
            ["model.layers=1", "{config}"],
            "put the configuration file before the override 'model.layers=1'.",
        ),
        (
            ["{config}", "training.batch_size=10000000000"],
            "training.batch_size: must be less than or equal to 1000000, got 10000000000",
        ),
        (["--example", "poetry"], "invalid choice: 'poetry'"),
    ],
)
def test_wrong_usage_exits_with_2(
    config: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", *(word.format(config=config) for word in arguments)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "error: missing.yaml: No such file or directory\n"),
        (["{config}", "data.train=[missing]"], "error: missing: No such file or directory\n"),
        (["{config}", "data.train=*.xyz"], "error: no file matches *.xyz.\n"),
        (["{config}", "data.max_length=1"], "there is no pair to train on"),
        (["{config}", "training.folder={config}"], "config.yaml"),
    ],
)
def test_failure_exits_with_1(
    config: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *(word.format(config=config) for word in arguments)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("fenchel train: error: ")
    assert message in err


def test_evaluate_prints_scores_and_sparsity(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = str(model.parent / "verbs-dev")
    assert main(["evaluate", str(model), dev]) == 0
    out = capsys.readouterr().out
    for name in (
        "accuracy",
        "edit_distance",
        "nonzeros in attention",
        "nonzeros in output",
        "inputs with one hypothesis",
        "inputs certified exact",
    ):
        assert name in out
    output = model.parent / "out.txt"
    arguments = ["--json", "--output", str(output), "--ensemble", str(model), "--beam", "2"]
    assert main(["evaluate", str(model), dev, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 32
    assert found["sparsity"].keys() == {
        "attention_nonzeros",
        "output_nonzeros",
        "single_hypothesis",
        "exact",
        "complete",
    }
    assert len(output.read_text(encoding="utf-8").splitlines()) == 32


def test_evaluate_lists_languages(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, dev, other = (config.parent / name for name in ("model", "verbs-dev", "other-dev"))
    shutil.copy(config.parent / "verbs-train", config.parent / "other-train")
    both = f"data.train=[{config.parent}/*-train]"
    assert main(["train", str(config), both, "training.epochs=1", "--quiet"]) == 0
    capsys.readouterr()
    other.write_text(dev.read_text(encoding="utf-8") + "broken\n", encoding="utf-8")
    assert main(["evaluate", str(model), str(dev), str(other)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("other  accuracy")
    assert f"{other}, line 33: expected 3 columns" in err
    assert main(["evaluate", str(model), str(other), "--strict"]) == 1
    assert "line 33" in capsys.readouterr().err


def test_files_of_any_name_are_of_the_only_language(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = shutil.copy(model.parent / "verbs-dev", model.parent / "heldout.tsv")
    assert main(["evaluate", str(model), str(dev), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["languages"].keys() == {"verbs"}
    assert main(["evaluate", str(model), str(dev), "--language", "klingon"]) == 1
    assert "the language 'klingon' of" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", "no-model", "no-file", "--output", "no/where"]) == 1
    assert "the folder no does not exist; create it first" in capsys.readouterr().err


def test_text_is_scored_as_translation_or_summaries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in (("source", "ja nein"), ("target", "yes no")):
        (tmp_path / name).write_text(f"{words}\n" * 20, encoding="utf-8")
    files = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    settings = inflected.config(
        tmp_path,
        data={"task": "translation", "train": files, "validation": files, "tokens": "words"},
        training={"epochs": 12, "log_every": 1},
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
    assert main(["train", str(path), "--quiet"]) == 0
    model = str(tmp_path / "model")
    capsys.readouterr()
    assert main(["evaluate", model, *files.values(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"].keys() == {"BLEU", "chrF"}
    assert main(["evaluate", model, *files.values(), "--task", "summarization"]) == 0
    assert "ROUGE-L" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", model, files["source"]])
    assert stopped.value.code == 2
    assert "translation takes two files" in capsys.readouterr().err


def test_a_missing_model_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path), "file"]) == 1
    assert "holds no trained model" in capsys.readouterr().err


def test_a_wrong_section_of_a_models_configuration_is_named(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["search"]["beam"] = "x"
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["evaluate", str(model), str(model.parent / "verbs-dev")]) == 1
    assert "config.json does not hold a search: search.beam: must be an integer, got 'x'." in (
        capsys.readouterr().err
    )


def test_changed_data_are_refused_or_allowed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = config.parent / "verbs-train"
    assert main(["train", str(config), "--quiet", "training.epochs=1"]) == 0
    train.write_text(train.read_text(encoding="utf-8").replace("ed\t", "de\t"), encoding="utf-8")
    assert main(["train", str(config), "--quiet"]) == 1
    assert "add --allow-changed-data." in capsys.readouterr().err
    assert main(["train", str(config), "--allow-changed-data"]) == 0
    out, err = capsys.readouterr()
    assert "note: the training in" in err
    assert "Training is over: 2 epochs are done" in out


def test_a_missing_package_is_named() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None; from fenchel.cli import main; "
        "sys.exit(main(['train', '--example', 'inflection']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'fenchel[seq2seq]'" in done.stderr
