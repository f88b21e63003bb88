"""`fenchel demo`: the shipped verbs, the table it prints, and the files it leaves."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from fenchel import cli, plots
from fenchel.cli import _demo


@pytest.fixture
def small(monkeypatch):
    """Trains for one epoch on a smaller model, and draws a coarse picture."""
    whole, picture = _demo.config, plots.gallery

    def short(folder):
        config = whole(folder)
        model = config.model.model_copy(update={"hidden": 32, "embedding": 16})
        training = config.training.model_copy(update={"epochs": 1})
        return config.model_copy(update={"model": model, "training": training})

    monkeypatch.setattr(_demo, "config", short)
    monkeypatch.setattr(plots, "gallery", lambda: picture(points=9))


@pytest.mark.usefixtures("small")
def test_demo_leaves_the_model_the_page_and_the_picture(tmp_path, capsys):
    folder = tmp_path / "demo"
    assert cli.main(["demo", "--output", str(folder)]) == 0
    assert sorted(os.listdir(folder)) == ["explain.html", "mappings.png", "model"]
    printed = capsys.readouterr().out
    for lemma, _ in _demo.SHOWN:
        assert f"\n{lemma} " in printed
    assert "held-out forms" in printed
    assert "draw" in (folder / "explain.html").read_text(encoding="utf-8")
    assert cli.main(["demo", "--output", str(folder)]) == 0  # nothing is left to train
    again = capsys.readouterr().out
    assert again == printed


def pairs(split: str) -> list[tuple[str, str, str]]:
    lines = _demo.verbs(split).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]  # type: ignore[misc]


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_verbs_are_well_formed_and_in_order(split):
    rows = pairs(split)
    assert rows == sorted(rows, key=lambda row: row[0])
    assert len(set(rows)) == len(rows)
    for lemma, form, tags in rows:
        assert lemma.isascii()
        assert (lemma + form).isalpha()
        assert (lemma + form).islower()
        assert tags in _demo.FORMS
        if tags == "V;V.PTCP;PRS":
            assert form.endswith("ing")
        if tags == "V;3;SG;PRS":
            assert form.endswith("s")


def test_nothing_held_out_is_learnt_from():
    assert not _demo.accepted("train").keys() & _demo.accepted("dev").keys()


def test_every_verb_has_its_four_forms():
    seen = _demo.accepted("train") | _demo.accepted("dev")
    assert set(Counter(lemma for lemma, _ in seen).values()) == {4}


def test_ambiguous_forms_are_there():
    assert _demo.accepted("train")["dream", "V;PST"] == {"dreamed", "dreamt"}


def test_the_table_shows_held_out_forms():
    assert set(_demo.SHOWN) <= _demo.accepted("dev").keys()
    assert _demo.REFERENCE in _demo.accepted("dev")[_demo.SHOWN[0]]


@pytest.mark.parametrize(
    ("called", "typed"),
    [(".venv/bin/fenchel", ".venv/bin/fenchel"), ("x/__main__.py", "python -m fenchel")],
)
def test_the_next_command_can_be_typed(monkeypatch, tmp_path, called, typed):
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _demo.command() == typed
    program = tmp_path / "fenchel"
    program.touch(mode=0o755)
    assert _demo.command() == "fenchel"


def test_a_share_is_all_or_nothing_only_if_it_is():
    shares = {0.0: "0%", 1 / 275: "<1%", 0.664: "66%", 274 / 275: ">99%", 1 - 1e-7: "100%"}
    assert {share: _demo._percent(share) for share in shares} == shares


def test_a_folder_that_is_a_file(tmp_path, capsys):
    (tmp_path / "demo").write_text("")
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == 1
    assert "fenchel demo: error: " in capsys.readouterr().err
