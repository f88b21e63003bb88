"""Every figure in a table of docs/evidence.md stands in the results file that ends its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
ROWS = [
    line
    for line in (DOCS / "evidence.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "](" in line
]
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|\b\d+%|\b\d{3}\b")


def test_there_are_rows() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS)
def test_figures_are_in_the_results(row: str) -> None:
    cells = row.strip("| ").split(" | ")
    target = re.search(r"\(([^)]+)\)", cells[-1])
    assert target
    results = (DOCS / target[1]).read_text(encoding="utf-8")
    known = set(FIGURE.findall(results))
    for figure in FIGURE.findall(" ".join(cells[1:-1])):
        assert figure in known, figure
