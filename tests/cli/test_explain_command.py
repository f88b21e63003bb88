"""`fenchel explain`, and what it shares with the other commands that read models."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from small_models import save_verbs

from fenchel import cli
from fenchel.seq2seq.models import _folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    return save_verbs(tmp_path_factory.mktemp("models"))


def test_explain_writes_the_page(models, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["draw V;PST", "--reference", "drawn", "--html", str(page), "--max-length", "4"]
    options = ["--limit", "30", "--ensemble", str(models[1])]
    assert cli.main(["explain", str(models[0]), *words, *options]) == 0
    assert "<!doctype html>" in page.read_text(encoding="utf-8")
    assert f"The page is in {page}." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["draw"], "expected a lemma and tags, such as `draw V;PST`, got 'draw'"),
        (["draw V;PST", "--html", "/no/where.html"], "the folder /no does not exist; create it"),
        (["draw V;PST", "--html", "/"], "/ is a folder; name a file in it"),
        (["draw\tV;PST\tklingon"], "the language 'klingon' of"),
    ],
)
def test_what_cannot_be_explained(models, words, message, capsys):
    assert cli.main(["explain", str(models[0]), *words]) == 1
    assert message in capsys.readouterr().err


def test_unknown_tokens_are_noted(models, capsys):
    options = ["--max-length", "3", "--limit", "5", "--device", "cpu"]
    assert cli.main(["explain", str(models[0]), "dr\u00e9w V;PTS", *options]) == 0
    note = "note: the model does not know 2 of the 7 tokens of the input."
    assert note in capsys.readouterr().err


def test_unknown_tokens_are_as_loud_as_the_certificate(models, capsys, tmp_path):
    page = tmp_path / "page.html"
    options = ["--max-length", "3", "--limit", "5", "--device", "cpu", "--html", str(page)]
    assert cli.main(["explain", str(models[0]), "dr\u00e9w V;PTS", *options]) == 0
    said = "The model does not know 2 of the 7 tokens of the input: PTS, \u00e9."
    assert said in capsys.readouterr().out
    assert said in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("has_page", [False, True])
def test_the_reference_is_judged_and_its_unknown_tokens_are_noted(
    models, capsys, tmp_path, has_page
):
    options = ["--max-length", "3", "--limit", "5", "--device", "cpu"]
    options += ["--html", str(tmp_path / "page.html")] if has_page else []
    words = ["explain", str(models[0]), "draw V;PST", *options]
    assert cli.main([*words, "--reference", "dr\u00e9w\u0301n"]) == 0
    out, err = capsys.readouterr()
    assert "The reference as a whole has <0.1%.\n" in out
    assert err == "note: the model does not know \u00e9, \u25cc\u0301 in the reference.\n"
    assert cli.main([*words, "--reference", "drawn"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(words) == 0
    assert "The reference" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["predict", "evaluate", "explain"])
def test_every_file_of_a_model_is_read_once(models, monkeypatch, capsys, tmp_path, command):
    read = []
    for name in ("read_json", "read_tensors"):
        original = getattr(_folder, name)

        def counted(path, original=original):
            read.append(path)
            return original(path)

        monkeypatch.setattr(_folder, name, counted)
    (tmp_path / "english-dev").write_text("draw\tdraw\tV;PST\n", encoding="utf-8")
    first, second = map(str, models)
    words = {
        "predict": [first, second, first],
        "evaluate": [first, str(tmp_path / "english-dev"), "--task", "inflection"],
        "explain": [first, "draw V;PST", "--limit", "5"],
    }[command]
    if command != "predict":
        words += ["--ensemble", second, "--ensemble", first]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"draw\tV;PST\n")))
    assert cli.main([command, *words, "--device", "cpu", "--max-length", "3"]) == 0
    names = ("config.json", "vocabulary.json", "weights.safetensors")
    assert sorted(read) == sorted(folder / name for folder in models for name in names)


@pytest.mark.parametrize(
    ("words", "option", "most"),
    [
        (["predict", "--beam", "100000000000"], "--beam", 8192),
        (["predict", "--nbest", "100000000000"], "--nbest", 8192),
        (["predict", "--batch-size", "1000000000"], "--batch-size", 65536),
        (["predict", "--max-length", "1000000000"], "--max-length", 10000),
        (["explain", "draw V;PST", "--limit", "1000000000"], "--limit", 8192),
    ],
)
def test_what_would_take_all_memory_is_refused(models, words, option, most, capsys):
    command, *rest = words
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, str(models[0]), *rest])
    assert stopped.value.code == 2
    assert (
        f"argument {option}: must be at most {most}, got {words[-1]}; " in capsys.readouterr().err
    )
