"""`fenchel demo --mappings`: every mapping on one vector of scores, as a table and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .. import plots
from .._atomic import atomic_write, check_writable
from ..mappings import AbstractMapping

FORMATS = (".png", ".pdf", ".svg")
SCORES = (1.1, 0.93, 0.37, -0.4, 0.61, -1.5)
TARGET = 0


def picture_path(text: str) -> Path:
    """The type of an option for a picture's path, which ends in a known format."""
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(FORMATS)}, got {text!r}.")
    return path


def run(output: Path) -> int:
    """Prints the table, writes the picture, and prints its path."""
    print(_table())
    write(output)
    print(f"\nThe picture of all mappings is in {output}.")
    return 0


def _table() -> str:
    scores = torch.tensor(SCORES, dtype=torch.float64)
    rows = [("mapping", _weights(scores), "support", "max_Ω", "loss")]
    rows += [_row(mapping, scores) for mapping in plots.showcase()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "─" * len(lines[0]))
    notes = (
        "Each row holds the weights that a mapping gives to the scores in the first line; a dot is",
        "exactly zero. support: the number of nonzeros. max_Ω: the regularized maximum, whose",
        "gradient is the row. loss: the Fenchel-Young loss with the first entry as the target (the",
        "first k for ksubset), whose gradient is the row minus the target.",
    )
    return "\n".join([*lines, "", *notes])


def _row(mapping: AbstractMapping, scores: torch.Tensor) -> tuple[str, ...]:
    target = torch.tensor(TARGET)
    if mapping.total != 1.0:  # a set, not a class
        chosen = round(float(mapping(scores).sum()))
        target = (torch.arange(len(scores)) < chosen).to(scores.dtype)
    return (
        plots.label(mapping),
        _weights(mapping(scores)),
        str(int(mapping.support(scores).sizes)),
        f"{float(mapping.max(scores)):.4f}",
        f"{float(mapping.loss(scores, target)):.4f}",
    )


def _weights(values: torch.Tensor) -> str:
    return " ".join("      ." if value == 0 else f"{value:7.4f}" for value in values.tolist())


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = (
        f"{word:<{width}}" if column == 0 else f"{word:>{width}}"
        for column, (word, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([name, *numbers])


def write(output: Path) -> None:
    """Draws the gallery into a file, atomically."""
    check_writable(output)
    figure = plots.gallery()
    with atomic_write(output) as new:
        figure.savefig(new, format=output.suffix[1:].lower(), dpi=110)
