"""What an export holds and says, and that one that fails leaves nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from exported import LETTERS, build

from fenchel import cli
from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq, export, save
from fenchel.seq2seq.data._vocabulary import BOS
from fenchel.seq2seq.exporting import _export
from fenchel.seq2seq.exporting._programs import programs
from fenchel.seq2seq.models._ensemble import Ensemble

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own


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
