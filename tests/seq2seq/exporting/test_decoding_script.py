"""The script of an export reads what predict reads, and refuses what it cannot do."""

from __future__ import annotations

import io
import json
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from exported import LETTERS, SCRIPT, build, check_script

from fenchel import cli
from fenchel.seq2seq import (
    Characters,
    Featured,
    Normalized,
    Subwords,
    Symbols,
    Words,
    export,
    save,
)
from fenchel.seq2seq.data import _vocabulary
from fenchel.seq2seq.exporting import _export
from fenchel.seq2seq.exporting._export import SCRIPT_KINDS, unknown_kinds
from fenchel.seq2seq.exporting._programs import programs

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beam", "0"], "argument --beam: must be a positive integer, got '0'."),
        (["--beam", "-3"], "argument --beam: must be a positive integer, got '-3'."),
        (["--beam", "2.5"], "argument --beam: must be a positive integer, got '2.5'."),
        (["--nbest", "0"], "argument --nbest: must be a positive integer, got '0'."),
        (["--max-length", "0"], "argument --max-length: must be a positive integer, got '0'."),
        (["--beam", "2", "--nbest", "3"], "--nbest must be at most --beam, 2, got 3."),
        (["--greedy", "--beam", "2"], "--greedy finds one output: leave out --beam and --nbest."),
        (["--greedy", "--nbest", "2"], "--greedy finds one output: leave out --beam and --nbest."),
    ],
)
def test_wrong_options_of_the_script(words, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"{SCRIPT.name}: error: {message}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("words", "lstm softmax"),
        ("subwords", "lstm softmax"),
        ("featured", "lstm softmax"),
        ("words", "lstm copying"),
        ("featured", "lstm copying"),
    ],
)
def test_the_script_knows_other_vocabularies(kind, name, tmp_path):
    texts = ["marched marching march", "mark marks"] * 50
    source = target = Words(["a", "bb", "c"])
    if kind == "subwords":
        source = target = Subwords.build(texts, 30)
    elif kind == "featured":
        source = Featured(Normalized(Characters("aé"), "NFC"), ["N", "V"])
        target = Characters("ku") if name == "lstm copying" else Symbols(["k", "æ"])
    model = build(name, source, target)
    export(model, tmp_path, formats=["onnx"], beam=3, max_length=4)
    inputs = {
        "words": ["bb a \u00e9", "c", "dd  bb dd"],
        "subwords": ["marks", "march mark"],
        "featured": ["ae\u0301\tV;X", "é\tN V", "o\u0301uo\u0301o\u0301\tX"],
    }[kind]
    letters = check_script(model, tmp_path, inputs, beam=3, length=4)
    assert not model.config.copy_source or {"words": "d", "featured": "\u00f3"}[kind] in letters


WORDS = Words(["a", "bb", "c"])


READ = {
    "features": (
        (Featured(Characters("a\u00e9"), ["N", "V"]), Characters("ku")),
        ["a\u00e9\tV;X", "a\tV\tx", "aq b\tN", "a", ""],
    ),
    "normalized": (
        (Normalized(Characters("a\u00e9"), "NFC"), Characters("ku")),
        ["a\u00e9", "a\tN", "q\u0301\u200b"],
    ),
    "words": ((WORDS, WORDS), ["bb d d bb e", "bb\tc", "\ufffd bb", " "]),
    "inflection": (
        (None, None),
        ["draw V;X", "draw\tV\tenglish\tx", "dr\u00e9w \u0301 V", "draw\tV\tx"],
    ),
    "subwords": (
        (Subwords.build(["marched marching march", "mark marks"] * 50, 30), WORDS),
        ["march", "mark\tx", "m\u00e4rk"],
    ),
}


COPIED = ["words", "inflection"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "lstm softmax") for kind in READ), *((kind, "lstm copying") for kind in COPIED)],
)
def test_the_script_reads_lines_as_predict_does(kind, name, tmp_path, monkeypatch, capsys):
    vocabularies, lines = READ[kind]
    model = build(name, *vocabularies)
    save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    if kind != "inflection":
        features = "tags" if kind == "features" else None
        config["data"] = {"task": "text", "train": ["a.tsv"], "features": features}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    described = _export._description(model, programs(model), 2, 3)
    (tmp_path / "export.json").write_text(json.dumps(described), "utf-8")
    spec = spec_from_file_location("decode_onnx", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script.onnxruntime, "InferenceSession", lambda *_, **__: None)
    monkeypatch.setattr(script, "beam_search", lambda *_: [("found", 1.0)])
    monkeypatch.setattr(sys, "argv", ["decode.py", "--folder", str(tmp_path)])

    def reports() -> list[str]:
        return [line for line in capsys.readouterr().err.splitlines() if line[:5] == "line "]

    given = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert cli.main(["predict", str(tmp_path), "--device", "cpu", "--max-length", "3"]) == 1
    wanted = reports()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    with pytest.raises(SystemExit) as stopped:
        script.main()
    assert stopped.value.code == 1
    found = reports()
    said = [[line for line in each if "does not know" in line] for each in (wanted, found)]
    assert said[0] == said[1] != []
    assert [line.split(":")[0] for line in found] == [line.split(":")[0] for line in wanted]
    refused = {line.split(":")[0] for line in found if "does not know" not in line}
    numbers = range(1, len(lines) + 1)
    expected = ["" if f"line {number}" in refused else "found" for number in numbers]
    assert written.getvalue().decode().splitlines() == expected
    if kind != "inflection":
        assert "line 2: the line has other columns than an input." in found


def test_a_vocabulary_that_the_script_does_not_know(monkeypatch):
    monkeypatch.setattr(_vocabulary, "_KINDS", dict(_vocabulary._KINDS))

    class Strange(Characters):
        kind = "strange"

    assert unknown_kinds(build("lstm softmax", target=Strange(LETTERS))) == ["strange"]
    assert unknown_kinds(build("lstm softmax")) == []
    for kind in SCRIPT_KINDS:
        assert f'"{kind}"' in SCRIPT.read_text("utf-8")
