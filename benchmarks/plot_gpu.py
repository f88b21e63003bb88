"""Draws gpu_mappings and gpu_attention: `python -m benchmarks.plot_gpu [RESULTS.jsonl …]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fenchel import plots

from .results import FOLDER, Row

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PASSES = ("forward", "forward+backward")
COLOURS = {
    "copy": "#888888",
    "softmax": "C0",
    "entmax 1.5": "C1",
    "entmax 1.33": "C2",
    "sparsemax": "C3",
}
MARKERS = {"torch": "", "fenchel": "o", "adasplash": "^", "liger": "s", "entmax": "x"}
DASHES = {"torch": "-", "fenchel": "-", "adasplash": "--", "liger": ":", "entmax": "-."}
MAPPINGS_NOTE = (
    "copy: torch's copy of the rows, a bound for any kernel. entmax, adasplash and liger: the "
    "packages of these names,\ntimed on short rows only; the backward pass of adasplash for 1.5 "
    "did not compile."
)

ATTENTION = {
    ("fenchel", "entmax 1.5"): ("C1", "o", "-"),
    ("torch", "softmax, cuDNN"): ("C0", "", "-"),
    ("torch", "softmax, FlashAttention-2"): ("#888888", "s", ":"),
    ("adasplash", "entmax 1.5, version 2"): ("C2", "^", "--"),
    ("adasplash", "entmax 1.5, version 1"): ("C3", "x", "-."),
}
"""Colour, marker and dashes."""
ATTENTION_NOTE = (
    "cuDNN and FlashAttention-2: torch's two kernels of softmax attention. adasplash: the package "
    "of that name, Triton kernels\nof entmax attention, timed at some lengths. All causal, with "
    "queries and keys from N(0, 1)."
)
ATTENTION_SIZE = 64


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
    _finish(axes, "entries of a row")


def _finish(axes: Axes, label: str) -> None:
    axes.grid(linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(label)


def _pair(rows: Sequence[Row], draw: Callable[[Axes, str], None], label: str, note: str) -> Figure:
    """Two pictures side by side, one for each pass; `draw` fills them, and a note explains."""
    drawn = Figure(figsize=(10, 5), layout="constrained")
    pair: Any = drawn.subplots(1, 2, sharey=True)
    for axes, pass_ in zip(pair, PASSES, strict=True):
        draw(axes, pass_)
        axes.set_title(pass_.replace("+", " + "))
    pair[0].set_ylabel(label)
    handles, labels = pair[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside right center", frameon=False)
    drawn.suptitle(f"{rows[0]['gpu']}, PyTorch {rows[0]['torch']}")
    drawn.supxlabel(note, fontsize="small", x=0.01, ha="left")
    return drawn


def mappings(rows: Sequence[Row], dtype: str = "bfloat16") -> Figure:
    """Time per entry against the width of a row: forward, and forward with backward.

    Args:
        rows: of one run of gpu_mappings.
        dtype: the type of numbers to draw.
    """

    def draw(axes: Axes, pass_: str) -> None:
        key = ("gpu", pass_, dtype)
        _draw(axes, [row for row in rows if (row["clock"], row["pass"], row["dtype"]) == key])

    return _pair(rows, draw, f"picoseconds per entry, {dtype}", MAPPINGS_NOTE)


def attention(rows: Sequence[Row]) -> Figure:
    """Time of one head against the length of causal sequences: forward, and with backward.

    Args:
        rows: of one run of gpu_attention.
    """

    def draw(axes: Axes, pass_: str) -> None:
        for (library, mapping), (colour, marker, dashes) in ATTENTION.items():
            points: dict[int, float] = {}
            key = (pass_, "causal", "normal", library, mapping)
            for row in rows:
                if tuple(map(row.get, ("pass", "keys", "queries", "library", "mapping"))) == key:
                    sequences, heads, length, size = map(int, row["shape"].split("x"))
                    if row["µs"] and size == ATTENTION_SIZE:
                        points.setdefault(length, row["µs"] / 1e3 / (sequences * heads))
            if not points:
                continue
            axes.loglog(
                sorted(points),
                [points[length] for length in sorted(points)],
                color=colour,
                linestyle=dashes,
                marker=marker,
                markersize=4,
                linewidth=1.9 if library == "fenchel" else 1.2,
                label=f"{library} {mapping}",
            )
        _finish(axes, "length of the sequence")

    label = f"milliseconds per head of {ATTENTION_SIZE}, bfloat16"
    return _pair(rows, draw, label, ATTENTION_NOTE)


FIGURES = {"gpu_mappings": (mappings, "gpu.svg"), "gpu_attention": (attention, "gpu_attention.svg")}
"""What draws the results of a case, and the name of the picture."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the results, writes the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_gpu", description=__doc__)
    parser.add_argument(
        "results",
        type=Path,
        nargs="*",
        help="the files to draw the last runs of (default: the newest of each case)",
    )
    parser.add_argument(
        "--output", type=Path, default=IMAGES, help="a folder (default: docs/images)"
    )
    options = parser.parse_args(arguments)
    paths = options.results or [path for case in FIGURES for path in _newest(case)]
    if not paths:
        parser.error(f"no results of {' or '.join(FIGURES)} in {FOLDER}; measure first")
    for path in paths:
        rows = last_run(path)
        draw, name = FIGURES[rows[0]["case"]]
        for dark in (False, True):
            path = options.output / (name.replace(".", "-dark.") if dark else name)
            with plots.theme(dark=dark):
                draw(rows).savefig(path, metadata={"Date": None})
            print(f"written: {path}")


def _newest(case: str) -> list[Path]:
    """The results of a case that were written last, if there are any."""
    return sorted(FOLDER.glob(f"{case}-*.jsonl"), key=lambda path: path.stat().st_mtime)[-1:]


if __name__ == "__main__":
    main()
