"""Draws the results of the case gpu_mappings: `python -m benchmarks.plot_gpu RESULTS.jsonl`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import FOLDER, Row

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "gpu.svg"
PASSES = ("forward", "forward+backward")
COLOURS = {
    "copy": "#666666",
    "softmax": "#000000",
    "entmax 1.5": "#E69F00",
    "entmax 1.33": "#0072B2",
    "sparsemax": "#009E73",
}
"""Okabe and Ito's, which can be told apart under colour blindness."""
MARKERS = {"torch": "", "fenchel": "o", "adasplash": "^", "liger": "s", "entmax": "x"}
DASHES = {"torch": "-", "fenchel": "-", "adasplash": "--", "liger": ":", "entmax": "-."}


def last_run(path: Path) -> list[Row]:
    """The rows of the last run in a results file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def _curves(rows: Sequence[Row]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Widths d, with picoseconds per entry, by library and mapping."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        if row["µs"]:
            n, d = map(int, row["shape"].split("x"))
            point = d, row["µs"] * 1e6 / (n * d)
            curves.setdefault((row["library"], row["mapping"]), []).append(point)
    return curves


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
    for (library, mapping), points in _curves(rows).items():
        axes.loglog(
            *zip(*sorted(points), strict=True),
            color=COLOURS[mapping],
            linestyle=DASHES[library],
            marker=MARKERS[library],
            markersize=4,
            linewidth=1.9 if library in ("torch", "fenchel") else 1.2,
            label=f"{library} {mapping}",
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("entries of a row")


def figure(rows: Sequence[Row], dtype: str = "bfloat16") -> Figure:
    """Time per entry against the width of a row: forward, and forward with backward.

    Args:
        rows: of one run of gpu_mappings.
        dtype: the type of numbers to draw.
    """
    drawn = Figure(figsize=(10, 4.6), layout="constrained")
    pair: Any = drawn.subplots(1, 2, sharey=True)
    for axes, pass_ in zip(pair, PASSES, strict=True):
        key = ("gpu", pass_, dtype)
        _draw(axes, [row for row in rows if (row["clock"], row["pass"], row["dtype"]) == key])
        axes.set_title(pass_.replace("+", " + "))
    pair[0].set_ylabel(f"picoseconds per entry, {dtype}")
    handles, labels = pair[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside right center", frameon=False)
    drawn.suptitle(f"{rows[0]['gpu']}, PyTorch {rows[0]['torch']}")
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the results, writes the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_gpu", description=__doc__)
    parser.add_argument(
        "results",
        type=Path,
        nargs="?",
        help="the file to draw the last run of (default: the newest gpu_mappings-*.jsonl)",
    )
    parser.add_argument("--output", type=Path, default=PICTURE, help=f"(default: {PICTURE.name})")
    options = parser.parse_args(arguments)
    found = sorted(FOLDER.glob("gpu_mappings-*.jsonl"), key=lambda path: path.stat().st_mtime)
    if options.results is None and not found:
        parser.error(f"no results of gpu_mappings in {FOLDER}; measure first, or name a file")
    figure(last_run(options.results or found[-1])).savefig(options.output)
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
