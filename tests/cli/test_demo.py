"""`fenchel demo`: the shipped verbs, the table it prints, and the files it leaves."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter

import pytest

from fenchel import cli, plots
from fenchel.cli import _demo
from fenchel.seq2seq import Characters, Hypothesis, ModelConfig, Result, Seq2Seq

LETTERS = Characters("abcdet")


@pytest.fixture
def small(monkeypatch):
    """Trains for one epoch on a smaller model, and draws a coarse picture."""
    whole, picture = _demo.config, plots.gallery

    def short(folder):
        config = whole(folder)
        model = config.model.model_copy(update={"hidden": 32, "embedding": 16})
        training = config.training.model_copy(update={"epochs": 1})
        search = config.search.model_copy(update={"max_length": 20})
        return config.model_copy(update={"model": model, "training": training, "search": search})

    monkeypatch.setattr(_demo, "config", short)
    monkeypatch.setattr(plots, "gallery", lambda: picture(points=9))


@pytest.mark.usefixtures("small")
def test_demo_leaves_the_model_the_page_and_the_picture(tmp_path, capsys):
    folder = tmp_path / "demo"
    assert cli.main(["demo", "--output", str(folder)]) == 0
    assert sorted(os.listdir(folder)) == ["explain.html", "mappings.png", "model"]
    printed = capsys.readouterr().out
    sizes = re.findall(r"^(.*) \((\d+) of (\d+), drawn at random\):$", printed, re.MULTILINE)
    assert [kind for kind, _, _ in sizes] == list(_demo.SAMPLE_SIZES)
    held_out = _demo.accepted("dev")
    assert sum(int(count) for _, _, count in sizes) == len(held_out)
    subject = re.search(r"considers for the (.*) of `(\w+)`", printed)
    tags = {name: tags for tags, name in _demo.FORMS.items()}[subject[1]]
    assert (subject[2], tags) in held_out
    assert subject[2] in (folder / "explain.html").read_text(encoding="utf-8")
    assert cli.main(["demo", "--output", str(folder)]) == 0  # nothing is left to train
    again = capsys.readouterr().out
    assert again == printed
    shown = re.search(r"forms (\d+) are right, (\S+)%; .*", printed.replace("\n", " "))
    evaluate = re.search(r"The same figures: (.*)", printed)[1]
    words = shlex.split(evaluate)
    assert cli.main([*words[words.index("evaluate") :], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == len(held_out)
    assert shown[2] == f"{found['scores']['accuracy']:.2f}"
    assert shown[2] == f"{100 * int(shown[1]) / len(held_out):.2f}"
    for share in ("single_hypothesis", "complete", "exact"):
        assert f"{found['sparsity'][share]:.2f}%" in shown[0]


def result(*outputs: str, complete: bool = True) -> Result:
    """What a search found: outputs, each half as probable as the one before."""
    hypotheses = [
        Hypothesis(tuple(LETTERS.encode(text)), -k * math.log(2), ())
        for k, text in enumerate(outputs)
    ]
    return Result(hypotheses, exact=True, complete=complete, bound=0.0, limited=False)


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), LETTERS, LETTERS)


def test_forms_are_sorted_by_what_is_considered(model):
    forms = {("a", "V;PST"): ["aed"], ("b", "V;PST"): ["bed", "bt"], ("c", "V;PST"): ["ced"]}
    results = [result("aed"), result("bt", "bed"), result("ct", "ced", complete=False)]
    kinds = _demo.by_kind(model, dict(zip(forms, results, strict=True)), forms)
    assert list(kinds.values()) == [[form] for form in forms]
    kinds = _demo.by_kind(model, dict.fromkeys(forms, result("aed", complete=False)), forms)
    assert [len(group) for group in kinds.values()] == [0, 1, 2]


def test_some_of_each_kind_are_drawn():
    kinds = {kind: [(f"{kind}{k}", "V;PST") for k in range(20)] for kind in _demo.SAMPLE_SIZES}
    kinds[_demo.WRONG] = kinds[_demo.WRONG][:2]
    shown = _demo.sample(kinds)
    assert shown == _demo.sample(kinds)
    assert [len(group) for group in shown.values()] == [3, 5, 2]
    for kind, group in shown.items():
        assert len(set(group)) == len(group)
        assert set(group) <= set(kinds[kind])


def test_all_outputs_are_counted(model):
    form, outputs = ("a", "V;PST"), ("aed", "at", "aad", "abd", "acd")
    found = _demo.row(model, form, ["aed"], result(*outputs))
    assert found == ("a", "past", "aed 100%, at 50%, aad 25% and 2 more", "complete", "")
    found = _demo.row(model, form, ["ab", "ac"], result(*outputs, complete=False))
    assert found[2:] == ("aed 100%, at 50%, aad 25% and ≥2 more", "exact", "ab, ac")
    assert _demo.row(model, form, ["at"], result("at"))[2:] == ("at 100%", "complete", "")


def test_a_probability_short_of_one_by_rounding_is_one(model):
    tokens = tuple(LETTERS.encode("at"))
    found = Result([Hypothesis(tokens, -1e-7, ())], True, True, bound=0.0, limited=False)
    assert _demo.row(model, ("a", "V;PST"), ["at"], found)[2] == "at 100%"


def test_each_group_has_its_title():
    rows = [("be", "past", "was 60%, were 40%", "complete", ""), ("go", "past", "", "none", "went")]
    printed = _demo.table({"one": rows[:1], "none": [], "two": rows[1:]}).splitlines()
    assert printed[3:] == [
        "one",
        "be    past  was 60%, were 40%         complete",
        "",
        "none",
        "",
        "two",
        "go    past                            none         went",
    ]


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
    assert _demo.accepted("train")["dream", "V;PST"] == ["dreamed", "dreamt"]


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


def test_a_folder_that_is_a_file(tmp_path, capsys):
    (tmp_path / "demo").write_text("")
    assert cli.main(["demo", "--output", str(tmp_path / "demo")]) == 1
    assert "fenchel demo: error: " in capsys.readouterr().err
