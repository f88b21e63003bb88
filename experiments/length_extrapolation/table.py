"""Tables and pictures of the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from fenchel import plots

from .. import files, summary, tables
from .results import CACHE, LANGUAGE, ROWS, Row
from .settings import ATTENTIONS
from .tasks import TASKS


def lengths_table(rows: Sequence[Row], measure: str) -> str:
    """Percent at each length, by task and attention, over the seeds."""
    lengths = sorted({row["length"] for row in rows})
    groups = summary.grouped(rows, ("task", "attention", "length"))

    def cell(task: str, kind: str, length: int) -> str:
        found = groups.get((task, kind, length), ())
        return summary.spread([100 * row[measure] for row in found]) if found else ""

    pairs = {key[:2] for key in groups}
    lines = [
        [task, ATTENTIONS[kind], *(cell(task, kind, length) for length in lengths)]
        for task in TASKS
        for kind in ATTENTIONS
        if (task, kind) in pairs
    ]
    return tables.markdown(["task", "attention", *map(str, lengths)], lines)


def lengths_page(content: dict[str, Any]) -> str:
    """The tables of the tasks."""
    rows = content["rows"]
    return "\n\n".join(
        [
            "# Train short, test long: answers by length",
            f"Answers right, %, by length in tokens; training up to {_length(content)}.",
            lengths_table(rows, "accuracy"),
            "Sequences with all answers right, %.",
            lengths_table(rows, "exact"),
            _machine(content),
        ]
    )


def lengths_figure(rows: Sequence[Row]) -> Any:
    """Accuracy against length, a panel for each task and a line for each attention."""
    groups = summary.grouped(rows, ("task", "attention", "length"))
    lengths = sorted({row["length"] for row in rows})
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]

    def mean(task: str, kind: str, length: int) -> float:
        found = groups.get((task, kind, length))
        return fmean(row["accuracy"] for row in found) if found else nan

    lines = {}
    for kind, name in ATTENTIONS.items():
        if any(row["attention"] == kind for row in rows):
            means = {task: [mean(task, kind, n) for n in lengths] for task in tasks}
            lines[name] = {"length": lengths, **means}
    figure = plots.plot_histories(lines, "length")
    for axes in figure.axes:
        axes.set_yscale("linear")
        axes.set_ylim(-0.02, 1.02)
        axes.axvline(lengths[0], color="#bbbbbb", linewidth=0.8)
    return figure


def language_page(content: dict[str, Any]) -> str:
    """The tables of the language model."""
    rows = sorted(content["rows"], key=lambda row: list(ATTENTIONS).index(row["attention"]))
    base = next((row["milliseconds"] for row in rows if row["attention"] == "softmax"), None)
    lines = [
        [
            ATTENTIONS[row["attention"]],
            f"{row['loss']:.4f}",
            f"{min(record['loss'] for record in row['history']):.4f}",
            row["milliseconds"],
            row["milliseconds"] / base if base else None,
            fmean(count for layer in row["nonzeros"] for count in layer),
            row["visible"],
        ]
        for row in rows
    ]
    head = ["attention", "held-out loss", "lowest", "ms per step", "of softmax"]
    head += ["nonzeros", "visible"]
    parts = [
        "# Train short, test long: a model of language",
        f"Loss in nats per character after {content['settings']['steps']} steps; nonzeros are "
        "weights of a query, on average, of so many visible characters.",
        tables.markdown(head, lines),
        "Nonzeros by layer and head.",
        _by_head(rows, "nonzeros"),
    ]
    learned = [row for row in rows if row["alpha"]]
    if learned:
        parts += ["Learned α by layer and head.", _by_head(learned, "alpha")]
    return "\n\n".join([*parts, _machine(content)])


def language_figure(rows: Sequence[Row]) -> Any:
    """The held-out loss over the steps."""
    lines = {
        ATTENTIONS[row["attention"]]: {
            name: [record[name] for record in row["history"]] for name in ("step", "loss")
        }
        for row in rows
    }
    return plots.plot_histories(lines, "step")


def cache_page(content: dict[str, Any]) -> str:
    """The tables of the pages that are read."""

    def line(row: Row) -> list[Any]:
        shares = [100 * share for layer in row["read"] for share in layer]
        found = [min(shares), fmean(shares), max(shares)]
        cells = [row["positions"], ATTENTIONS[row["attention"]], row["length"], row["loss"], *found]
        for device in devices:
            by_pages, to_all = row[device]["pages"], row[device]["all"]
            cells += [by_pages, to_all, by_pages / to_all]
        return cells

    rows = content["rows"]
    devices = [name for name in ("cuda", "cpu") if all(name in row for row in rows)]
    head = ["positions", "trained with", "keys", "loss", "least", "mean", "most"]
    for device in devices:
        word = "GPU" if device == "cuda" else "CPU"
        head += [f"{word} ms", "all keys", "ratio"]
    longest = max((row["length"] for row in rows), default=0)
    heads = range(1, content["settings"]["heads"] + 1)
    by_head = [
        [row["positions"], ATTENTIONS[row["attention"]], layer, *(100 * share for share in shares)]
        for row in rows
        if row["length"] == longest
        for layer, shares in enumerate(row["read"], 1)
    ]
    return "\n\n".join(
        [
            "# Train short, test long: pages of a cache that trained models read",
            "Pages of 64 keys that a query of 1.5-entmax attention reads, %, of all that there "
            "are: least, mean and most of all layers and heads. Times are of one query in all "
            "layers and heads: by pages, and to all keys, which is softmax by cuDNN on a GPU and "
            "entmax on a CPU.",
            tables.markdown(head, [line(row) for row in rows]),
            f"By layer and head, {longest} keys, %.",
            tables.markdown(
                ["positions", "trained with", "layer", *(f"head {h}" for h in heads)], by_head
            ),
            _machine(content),
        ]
    )


def save(folder: Path, output: Path) -> list[Path]:
    """Writes the tables, pictures and rows of a run into a folder.

    Returns:
        The pages that were written.
    Raises:
        FileNotFoundError: if the run has no results.
    """
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for name, stem, page, figure in (
        (ROWS, "lengths", lengths_page, lengths_figure),
        (LANGUAGE, "language", language_page, language_figure),
        (CACHE, "cache", cache_page, None),
    ):
        path = folder / name
        if not path.exists():
            continue
        content = path.read_bytes()
        found = json.loads(content)
        files.write(output / name, content)
        written.append(output / f"{stem}.md")
        files.write(written[-1], (page(found) + "\n").encode())
        if figure is not None and found["rows"]:
            figure(found["rows"]).savefig(output / f"{stem}.png", dpi=110)
    if not written:
        raise FileNotFoundError(f"{folder} must hold {ROWS}, {LANGUAGE} or {CACHE}; train first.")
    return written


def _by_head(rows: Sequence[Row], name: str) -> str:
    heads = range(1, len(rows[0][name][0]) + 1)
    lines = [
        [ATTENTIONS[row["attention"]], layer, *counts]
        for row in rows
        for layer, counts in enumerate(row[name], 1)
    ]
    return tables.markdown(["attention", "layer", *(f"head {h}" for h in heads)], lines)


def _length(content: dict[str, Any]) -> int:
    return content["settings"]["length"]


def _machine(content: dict[str, Any]) -> str:
    return "{device}, torch {torch}.".format(**content["machine"])
