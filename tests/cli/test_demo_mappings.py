"""`fenchel demo --mappings`: the table, the picture, and what happens when it cannot be written."""

from __future__ import annotations

import os
import sys

import pytest

from fenchel import cli, mappings, plots
from fenchel.cli import _demo_mappings


@pytest.fixture
def small_picture(monkeypatch):
    """Draws a coarse picture, for speed."""
    whole = plots.gallery
    monkeypatch.setattr(plots, "gallery", lambda: whole(points=9))


@pytest.mark.usefixtures("small_picture")
@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_demo_writes_the_picture_and_says_where(tmp_path, capsys, suffix, start):
    output = tmp_path / f"picture.{suffix}"
    assert cli.main(["demo", "--mappings", str(output)]) == 0
    assert output.read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [output.name]
    assert str(output) in capsys.readouterr().out


def rows():
    """The table's lines as words, one for each mapping."""
    return _demo_mappings._table().split("\n\n")[0].splitlines()[2:]


def test_table_has_every_mapping_with_weights_that_sum_to_its_total():
    assert sorted(row.split()[0] for row in rows()) == mappings.names()
    for row, mapping in zip(rows(), plots.showcase(), strict=True):
        words = row.removeprefix(plots.label(mapping)).split()
        weights = [0.0 if word == "." else float(word) for word in words[:-3]]
        assert len(weights) == len(_demo_mappings.SCORES)
        assert sum(weights) == pytest.approx(mapping.total or 2, abs=0.003)
        assert sum(weight > 0 for weight in weights) == int(words[-3])


def test_losses_are_nonnegative():
    for row in rows():
        assert float(row.split()[-1]) >= 0, row


def test_missing_folder(tmp_path, capsys):
    assert cli.main(["demo", "--mappings", str(tmp_path / "no" / "a.png")]) == 1
    error = capsys.readouterr().err
    assert error == (
        f"fenchel demo: error: the folder {tmp_path / 'no'} does not exist; create it first.\n"
    )


def test_folder_that_is_not_writable(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert cli.main(["demo", "--mappings", str(tmp_path / "a.png")]) == 1
    assert f"the folder {tmp_path} is not writable; choose another." in capsys.readouterr().err


def test_output_that_is_a_folder(tmp_path, capsys):
    (tmp_path / "a.png").mkdir()
    assert cli.main(["demo", "--mappings", str(tmp_path / "a.png")]) == 1
    assert "is a folder; name a file in it." in capsys.readouterr().err


def test_failed_drawing_leaves_the_old_picture_and_nothing_else(tmp_path, monkeypatch, capsys):
    class Broken:
        def savefig(self, *_, **__):
            raise OSError("the disk is full")

    monkeypatch.setattr(plots, "gallery", Broken)
    output = tmp_path / "a.png"
    output.write_bytes(b"old")
    assert cli.main(["demo", "--mappings", str(output)]) == 1
    assert output.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]
    assert "error: the disk is full" in capsys.readouterr().err


def test_missing_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["demo", "--mappings", str(tmp_path / "a.png")]) == 1
    assert "pip install 'fenchel[plots]'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
