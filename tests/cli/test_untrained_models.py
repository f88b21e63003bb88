"""Commands on models that were never trained: columns, references, unknown tokens, spellings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from piped import run

from fenchel.cli import main
from fenchel.seq2seq import Characters, Inflection, ModelConfig, Normalized, Seq2Seq, Words, save


@pytest.mark.parametrize("command", ["evaluate", "score"])
def test_inflections_have_their_own_columns(tmp_path: Path, capsys, command: str) -> None:
    source = Inflection(["english"], ["PST", "V"], list("draw"))
    model = Seq2Seq(ModelConfig(embedding=8, hidden=8, layers=1), source, Characters("drewn"))
    save(model, tmp_path / "model")
    table = tmp_path / "english-dev"
    table.write_text("draw\tdrew\tV;PST\nbroken\n", encoding="utf-8")
    words = [command, str(tmp_path / "model"), str(table), "--device", "cpu"]
    words += ["--task", "inflection", "--max-length", "3"] if command == "evaluate" else []
    assert main(words) == (0 if command == "evaluate" else 1)
    assert "expected 3 columns (lemma, form, tags), got 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--columns", "source=1"])
    assert stopped.value.code == 2
    assert "leave out --format, --columns and --header" in capsys.readouterr().err


def test_parallel_text_is_scored_from_two_files(tmp_path: Path, monkeypatch, capsys) -> None:
    for name, text in (("source", "ja nein\n" * 20), ("target", "yes no\n" * 20)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}
    values = {
        "data": {"task": "translation", "train": files, "validation": files, "tokens": "words"},
        "model": {"embedding": 8, "hidden": 8, "layers": 1},
        "training": {"folder": str(tmp_path / "model"), "epochs": 1, "device": "cpu"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main(["train", str(tmp_path / "config.yaml"), "--quiet", "training.metric=BLEU"]) == 0
    capsys.readouterr()
    (tmp_path / "source").write_bytes(b"ja nein\n\n\xff\nja\n")
    (tmp_path / "target").write_bytes(b"yes no\nyes\nyes\nno\n")
    code, lines, errors = run(monkeypatch, capsys, "", "score", tmp_path / "model", *files.values())
    assert (code, len(lines), lines[1:3]) == (1, 4, ["", ""])
    assert "line 2: " in errors
    assert "source: empty, while the other side is not." in errors
    assert "source: not UTF-8 at byte 1." in errors
    table = ("score", tmp_path / "model", "-", "--columns", "source=1,target=2")
    code, found, _ = run(monkeypatch, capsys, "ja nein\tyes no\n", *table)
    assert (code, found) == (0, lines[:1])
    with pytest.raises(SystemExit) as stopped:
        main(["score", str(tmp_path / "model"), files["source"]])
    assert stopped.value.code == 2


def test_predict_copies(tmp_path: Path, monkeypatch, capsys) -> None:
    """Letters that the model has never seen."""
    letters = Characters("ab")
    config = ModelConfig(embedding=4, hidden=4, layers=1, copy_source=True)
    save(Seq2Seq(config, letters, letters), tmp_path / "model")
    for options in ([], ["--sample", "3"], ["--nbest", "2"]):
        words = ("predict", tmp_path / "model", "--max-length", "3", *options)
        code, lines, errors = run(monkeypatch, capsys, "axb\n", *words)
        assert (code, errors.count("know")) == (0, 0)
        assert lines
    words = ("predict", tmp_path / "model", "--max-length", "3", "--json")
    code, lines, errors = run(monkeypatch, capsys, "axb\na\ufffd\n", *words)
    assert errors == "line 2: the model does not know \ufffd.\n"
    assert [json.loads(line).get("unknown") for line in lines] == [None, ["\ufffd"]]
    words = ("explain", tmp_path / "model", "axb", "--max-length", "3", "--reference", "xay")
    code, lines, errors = run(monkeypatch, capsys, "", *words)
    assert (code, errors) == (0, "note: the model does not know y in the reference.\n")
    assert not any("does not know" in line for line in lines)


def test_score_warns_of_what_cannot_be_copied(tmp_path: Path, monkeypatch, capsys) -> None:
    words = Words(["in"])
    config = ModelConfig(embedding=4, hidden=4, layers=1, copy_source=True)
    save(Seq2Seq(config, words, words), tmp_path / "model")
    rows = "in Rom\tRom in\nin\tRom\nin Rom Rom\tRom Paris\n"
    words = ("score", tmp_path / "model", "-", "--json", "--columns", "source=1,target=2")
    code, lines, errors = run(monkeypatch, capsys, rows, *words)
    assert code == 0
    assert [json.loads(line).get("unknown") for line in lines] == [None, ["Rom"], ["Paris"]]
    assert [line.split(":")[0] for line in errors.splitlines()] == ["line 2", "line 3"]
    assert "does not know Paris in the target." in errors


@pytest.mark.parametrize("copies", [False, True])
def test_the_language_of_a_score(tmp_path: Path, monkeypatch, capsys, copies: bool) -> None:
    source = Inflection(["english", "german"], ["V"], list("draw"))
    config = ModelConfig(embedding=4, hidden=4, layers=1, copy_source=copies)
    save(Seq2Seq(config, source, Characters("drew")), tmp_path / "model")
    words = ("score", tmp_path / "model", "-", "--language", "german")
    code, lines, errors = run(monkeypatch, capsys, "draw\tdrew\tV\n", *words)
    assert (code, len(lines), errors) == (0, 1, "")


def test_features_are_for_models_that_have_them(tmp_path: Path, capsys) -> None:
    letters = Characters("ab")
    config = ModelConfig(embedding=4, hidden=4, layers=1)
    save(Seq2Seq(config, letters, letters), tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    written["data"] = {"task": "text", "train": ["a.tsv"], "validation": ["a.tsv"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(written), encoding="utf-8")
    table = tmp_path / "table.tsv"
    table.write_text("ab\tab\tV\n", encoding="utf-8")
    columns = ["--columns", "source=1,target=2,features=3"]
    for command in ("evaluate", "score"):
        assert main([command, str(tmp_path / "model"), str(table), *columns]) == 1
        assert "names features, and the model has none" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "model"), "ab", "--features", "V"]) == 1
    assert "--features: the model has none" in capsys.readouterr().err


def test_spellings_that_a_normal_form_makes_one(tmp_path: Path, capsys) -> None:
    letters = Normalized(Characters("aé"), "NFC")
    config = ModelConfig(embedding=4, hidden=4, layers=1)
    save(Seq2Seq(config, letters, letters), tmp_path / "model")
    (tmp_path / "test.tsv").write_text("é\ta\ne\u0301\té\n", encoding="utf-8")
    words = ["evaluate", str(tmp_path / "model"), str(tmp_path / "test.tsv"), "--max-length", "2"]
    words += ["--task", "text"]
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["inputs", "1"] in lines


def test_scores_of_sources_from_standard_input(tmp_path: Path) -> None:
    letters = Characters("ab")
    save(Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters), tmp_path / "m")
    written = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    files = [{"source": "a", "target": "b"}]
    written["data"] = {"task": "translation", "train": files, "validation": files}
    (tmp_path / "m" / "config.json").write_text(json.dumps(written), encoding="utf-8")
    (tmp_path / "targets").write_text("b\nab\n", encoding="utf-8")
    words = [sys.executable, "-m", "fenchel", "score", "m", "-", "targets"]
    done = subprocess.run(words, input=b"a\nb\n", cwd=tmp_path, capture_output=True, check=True)
    assert len(done.stdout.splitlines()) == 2
