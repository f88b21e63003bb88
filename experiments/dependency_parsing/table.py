"""Gathers runs into a table beside the paper's, and draws how the number of parses falls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fenchel import plots

from .. import summary, tables

LOSSES = ("perceptron", "svm", "crf", "margin_crf", "sparsemap", "margin_sparsemap")
PAPER = {
    ("ud-vietnamese-2.0", "svm"): "69.42",
    ("ud-vietnamese-2.0", "crf"): "69.10",
    ("ud-vietnamese-2.0", "sparsemap"): "69.71",
    ("ud-vietnamese-2.0", "margin_sparsemap"): "70.87",
}
"""UAS on the test data, by treebank and loss, in Table 1 of the SparseMAP paper."""
COLUMNS = (
    "treebank",
    "loss",
    "seeds",
    "epochs",
    "dev UAS, best epoch",
    "paper, test UAS",
    "trees per sentence",
    "heads per word",
    "CPU s per epoch",
)
DRAWN = {"trees per sentence": "trees", "heads per word": "heads", "dev UAS": "uas"}


def table(found: Sequence[summary.Run]) -> str:
    """A row per treebank and loss, averaged over seeds, in Markdown."""
    rows = []
    for (data, loss), members in summary.grouped(_ordered(found), ("data", "loss")).items():
        best = summary.best(members, "uas")
        rows.append(
            (
                data,
                loss,
                str(len(members)),
                summary.epochs(members),
                summary.spread([record["uas"] for record in best]),
                PAPER.get((data, loss), "–"),
                f"{fmean(record['trees'] for record in best):.2f}",
                f"{fmean(record['heads'] for record in best):.3f}",
                f"{summary.seconds(members):.1f}",
            )
        )
    return tables.markdown(COLUMNS, rows)


def draw(found: Sequence[summary.Run], output: Path) -> None:
    """For each treebank a picture of its runs with the first seed, epoch by epoch."""
    for (data,), here in summary.grouped(_ordered(found), ("data",)).items():
        first = min(run["seed"] for run in here)
        shown = {
            run["loss"]: {
                title: [record[name] for record in run["history"]] for title, name in DRAWN.items()
            }
            for run in here
            if run["seed"] == first
        }
        plots.plot_histories(shown).savefig(output / f"{data}.png", dpi=110)


def _ordered(found: Sequence[summary.Run]) -> list[summary.Run]:
    return sorted(found, key=lambda run: (run["data"], LOSSES.index(run["loss"])))
