"""Every script of the gallery is short, has a reason, and draws its picture, light and dark."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fenchel import plots

SCRIPTS = sorted((Path(__file__).parents[1] / "docs" / "gallery").glob("*.py"))
MAX_LINES = 60


def test_there_are_a_dozen() -> None:
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_draws_its_picture(script: Path, tmp_path: Path) -> None:
    if "sklearn" in script.read_text(encoding="utf-8"):
        pytest.importorskip("sklearn")
    with plots.theme(dark=True):
        figure = runpy.run_path(str(script))["picture"]()
    assert isinstance(figure, Figure)
    assert figure.get_facecolor()[:3] < (0.2, 0.2, 0.2)
    figure.savefig(tmp_path / "picture.svg")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_is_short_and_says_why(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    title, _, reason = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    assert title.endswith(".")
    assert len(reason.split()) >= 20
    assert f'savefig("{script.stem}.svg")' in text
    listed = (script.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{title.rstrip('.')}]({script.name})" in listed
