"""`fenchel demo --mappings`: every mapping on one vector of scores, as a table and a picture."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch

from .. import plots
from ..mappings import AbstractMapping

FORMATS = (".png", ".pdf", ".svg")
SCORES = (1.1, 0.93, 0.37, -0.4, 0.61, -1.5)
TARGET = 0


def picture_path(text: str) -> Path:
    """A path of the command line that ends in a format of pictures."""
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(FORMATS)}, got {text!r}.")
    return path


def run(output: Path) -> int:
    """Prints the table, writes the picture, and says where it is."""
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
        "exactly zero. The support is the number of nonzeros; max_Ω the regularized maximum, whose",
        "gradient is the row; the loss is the Fenchel-Young loss against the first entry (against",
        "the first k for ksubset), whose gradient is the row less the target.",
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
        f"{word:<{width}}" if place == 0 else f"{word:>{width}}"
        for place, (word, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([name, *numbers])


def write(output: Path) -> None:
    """Draws the gallery into `output`, which is never seen half written."""
    folder = output.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder {folder} does not exist; create it first.")
    if output.is_dir():
        raise IsADirectoryError(f"{output} is a folder; name a file in it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {folder} is not writable; choose another.")
    figure = plots.gallery()
    handle, name = tempfile.mkstemp(prefix=".fenchel-", suffix=output.suffix, dir=folder)
    os.close(handle)
    try:
        figure.savefig(name, format=output.suffix[1:].lower(), dpi=110)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, output)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
