"""Exported programs have the model's numbers, and the script decodes without fenchel."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import runpy
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from fenchel import cli
from fenchel.seq2seq import (
    Characters,
    Featured,
    Inflection,
    ModelConfig,
    Normalized,
    Seq2Seq,
    Subwords,
    Symbols,
    Words,
    decode,
    export,
    save,
)
from fenchel.seq2seq.data import _vocabulary
from fenchel.seq2seq.data._vocabulary import BOS
from fenchel.seq2seq.decoding._decode import best_texts
from fenchel.seq2seq.exporting import _export
from fenchel.seq2seq.exporting._export import SCRIPT_KINDS, unknown_kinds
from fenchel.seq2seq.exporting._programs import programs
from fenchel.seq2seq.models._ensemble import Ensemble

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own

LETTERS = "adginrsw"
TARGET_LETTERS = "adinrsq"  # without g and w, which a model may copy
TEXTS = ["draw V;PST", "s V", "gin\tV;PST", "wards V;X", "\u00e9a V", "\ufffdqaq\u00e9 V", "w V"]
SIZES = [(1, 1), (1, 6), (2, 3), (5, 9)]
MODELS = {
    "lstm softmax": {"architecture": "lstm", "attention": "softmax", "output": "softmax"},
    "lstm entmax": {"architecture": "lstm", "layers": 2},
    "lstm learnt": {
        "architecture": "lstm",
        "attention": {"mapping": "entmax", "alpha": 1.5, "learned_alpha": True},
        "input_feeding": False,
    },
    "transformer softmax": {
        "architecture": "transformer",
        "attention": "softmax",
        "output": "softmax",
    },
    "transformer entmax": {"architecture": "transformer", "layers": 2},
    "lstm copying": {
        "architecture": "lstm",
        "attention": "softmax",
        "output": "softmax",
        "copy_source": True,
    },
    "transformer copying": {
        "architecture": "transformer",
        "attention": "softmax",
        "output": "sparsemax",
        "copy_source": True,
    },
}
QUICK = ["lstm softmax", "lstm copying"]
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def build(name: str, source=None, target=None) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {"embedding": 8, "hidden": 8, "layers": 1, "heads": 2, "feedforward": 16}
    config = ModelConfig.model_validate({**sizes, **MODELS[name]})
    source = source or Inflection(["english"], ["PST", "V"], list(LETTERS))
    model = Seq2Seq(config, source, target or Characters(TARGET_LETTERS)).eval()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if "encoder" not in each and "alpha" not in each:
                parameter.mul_(4)
    return model


@pytest.fixture(scope="module", params=NAMES)
def exported(request, tmp_path_factory) -> tuple[Seq2Seq, Path]:
    model = build(request.param)
    folder = tmp_path_factory.mktemp("exported")
    export(model, folder, beam=4, max_length=6)
    return model, folder


def check_rows(model: Seq2Seq, start, step, state_of) -> None:
    """Compares the probabilities of a program with float64, over inputs of several sizes.

    A mapping may be off by 10⁻⁶, some 16 roundings. How a network amplifies errors is seen in what
    its own roundings, in float32, make of the probabilities.
    """
    wide = copy.deepcopy(model).double()
    worst = own = 0.0
    for batch, size in SIZES:
        torch.manual_seed(batch)
        end = model.source.size
        if model.pointer is not None:  # also tokens of the target's alone, and of neither
            end += model.target.size + 3
        source = torch.randint(3, end, (batch, size))
        lengths = torch.randint(1, size + 1, (batch,))
        source[torch.arange(size) >= lengths[:, None]] = 0
        with torch.no_grad():
            states = [each.start(source, lengths) for each in (model, wide)]
            other = state_of(start(source, lengths), batch)
            tokens = torch.full((batch,), BOS)
            for _ in range(7):
                expected = []
                for place, each in enumerate((model, wide)):
                    p, _, (states[place],) = Ensemble(each).step([states[place]], tokens)
                    expected.append(p)
                found, other = step(tokens, other)
                worst = max(worst, float((found - expected[1]).abs().max()))
                own = max(own, float((expected[0] - expected[1]).abs().max()))
                tokens = expected[1].argmax(-1)
    assert worst <= 1e-6 + 16 * own


def description(folder: Path) -> dict:
    return json.loads((folder / "export.json").read_text("utf-8"))


def empty(folder: Path, batch: int) -> dict[str, torch.Tensor]:
    """The tensors of the state that are empty at first."""
    return {
        each["name"]: torch.zeros([{"batch": batch, "length": 0}.get(d, d) for d in each["dims"]])
        for each in description(folder)["state"]
        if each["empty_at_first"]
    }


def updated(state: dict, found: dict) -> dict:
    return {name: found.get(f"next_{name}", value) for name, value in state.items()}


def test_programs_of_torch_have_the_same_numbers(exported):
    model, folder = exported
    encoder, step = (
        torch.export.load(folder / f"{name}.pt2").module() for name in ("encoder", "step")
    )

    def one(tokens, state):
        found = step(tokens, state)
        return found["probabilities"], updated(state, found)

    state_of = lambda state, batch: {**state, **empty(folder, batch)}  # noqa: E731
    check_rows(model, encoder, one, state_of)


def test_onnx_has_the_same_numbers(exported):
    model, folder = exported
    sessions = {
        name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "step")
    }

    def run(name, inputs):
        session = sessions[name]
        known = {each.name for each in session.get_inputs()}
        outputs = [each.name for each in session.get_outputs()]
        values = {key: value.numpy() for key, value in inputs.items() if key in known}
        return dict(zip(outputs, map(torch.from_numpy, session.run(None, values)), strict=True))

    def one(tokens, state):
        found = run("step", {"tokens": tokens, **state})
        return found["probabilities"], updated(state, found)

    start = lambda source, lengths: run("encoder", {"source": source, "lengths": lengths})  # noqa: E731
    state_of = lambda state, batch: {**state, **empty(folder, batch)}  # noqa: E731
    check_rows(model, start, one, state_of)


def decoded(folder: Path, texts: list[str], *words: str) -> list[str]:
    """What the script writes, in a process that cannot import fenchel or torch."""
    blocked = "import sys; sys.modules['fenchel'] = sys.modules['torch'] = None; "
    code = f"{blocked}import runpy; sys.argv = {['decode.py', *words]!r}; "
    code += f"runpy.run_path({str(folder / 'decode.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(texts).encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def check_script(model: Seq2Seq, folder: Path, texts: list[str], beam: int, length: int) -> str:
    """Compares the script's outputs with those of fenchel, and returns their letters."""
    results = decode(model, texts, beam=beam, nbest=beam, max_length=length)
    wanted = [
        (str(number), model.target.decode(each.tokens), each.probability)
        for number, result in enumerate(results, start=1)
        for each in result.hypotheses[:3]
    ]
    found = [line.split("\t") for line in decoded(folder, texts, "--nbest", "3")]
    assert [tuple(line[:2]) for line in found] == [line[:2] for line in wanted]
    assert [float(line[2]) for line in found] == pytest.approx([p for *_, p in wanted], rel=1e-4)
    return "".join(text for _, text, _ in wanted)


def test_the_script_decodes_as_fenchel_does(exported):
    model, folder = exported
    letters = check_script(model, folder, TEXTS, beam=4, length=6)
    if model.pointer is not None:
        assert {"w", "\u00e9"} <= set(letters)


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
    script = Path(_export.__file__).parents[1] / "resources" / "decode_onnx.py"
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"{script.name}: error: {message}\n"


@pytest.mark.slow
def test_the_script_decodes_greedily(exported):
    model, folder = exported
    results = decode(model, TEXTS, method="greedy", max_length=6)
    assert decoded(folder, TEXTS, "--greedy") == best_texts(model, results)


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
    path = Path(_export.__file__).parents[1] / "resources" / "decode_onnx.py"
    spec = spec_from_file_location("decode_onnx", path)
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
        assert f'"{kind}"' in Path(_export.__file__).parents[1].joinpath(
            "resources", "decode_onnx.py"
        ).read_text("utf-8")


def test_the_state_is_described(tmp_path):
    model = build("transformer softmax")
    state = {each.name: each for each in programs(model).state}
    assert state["memory0_key"].dims == ("batch", 2, "source", 4)
    assert state["cache0_key"].dims == ("batch", 2, "length", 4)
    assert [name for name, each in state.items() if each.is_updated] == [
        "cache0_key",
        "cache0_value",
    ]
    assert [name for name, each in state.items() if each.is_empty_at_first] == [
        "cache0_key",
        "cache0_value",
    ]
    with pytest.raises(ValueError, match=r"`formats` must be some of onnx, pt2, got \['h5'\]"):
        export(model, tmp_path, formats=["h5"])
    with pytest.raises(ValueError, match="`beam` must be"):
        export(model, tmp_path, formats=["pt2"], beam=0)


def test_a_step_gives_tokens_and_where_they_are_copied_from():
    model = build("lstm copying")
    parts, ensemble = programs(model), Ensemble(model)
    dims = {each.name: (each.dims, each.dtype) for each in parts.state}
    assert dims["copy_ids"] == (("batch", "source"), "int64")
    source = torch.tensor([model.source.encode(text) for text in ("gaga V", "qaqé V")])
    lengths, tokens = torch.full((2,), source.shape[1]), torch.full((2,), BOS)
    with torch.no_grad():
        found = parts.step(tokens, parts.encoder(source, lengths))
        p, attention, _ = ensemble.step(ensemble.start(source, lengths), tokens)
    torch.testing.assert_close(found["probabilities"], p)
    torch.testing.assert_close(found["attention"], attention)


def test_the_command(tmp_path, capsys):
    save(build("lstm softmax"), tmp_path / "model")
    words = ["export", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--format", "pt2"]
    assert cli.main(words) == 0
    assert "step.pt2" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md",
        "encoder.pt2",
        "export.json",
        "step.pt2",
        "vocabulary.json",
    }
    assert cli.main(["export", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert "holds no trained model" in capsys.readouterr().err


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    save(build("lstm softmax"), tmp_path / "model")
    words = ["export", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--format", "pt2"]

    def fail(*_: object) -> None:
        raise OSError("the disk is full.")

    monkeypatch.setattr(_export, "save_vocabularies", fail)
    assert cli.main(words) == 1
    assert "fenchel export: error: the disk is full." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_said_with_the_file(tmp_path, monkeypatch, capsys):
    save(build("lstm softmax"), tmp_path / "model")
    monkeypatch.chdir(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    assert cli.main(["export", "model", "-o", "deep/out", "--format", "pt2"]) == 1
    said = "fenchel export: error: deep/out/encoder.pt2: No space left on device\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_what_onnx_does_not_have_is_refused(tmp_path, capsys):
    torch.manual_seed(0)
    letters = Characters(LETTERS)
    config = ModelConfig.model_validate({"embedding": 8, "hidden": 8, "attention": "fusedmax"})
    save(Seq2Seq(config, letters, letters), tmp_path / "model")
    words = ["export", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    assert cli.main(words) == 1
    assert "fusedmax cannot be exported to ONNX" in capsys.readouterr().err
    assert cli.main([*words, "--format", "pt2"]) == 0
