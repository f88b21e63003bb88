"""Gathers runs into a table beside the papers'."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from .. import summary, tables
from .models import MODELS

PAPER = {
    ("esim", "softmax"): "86.52 (100%)",
    ("esim", "sequential"): "86.62 (19%)",
    ("esim", "matching"): "86.05 (15%)",
    ("gru", "softmax"): "81.66",
    ("gru", "sparsemax"): "82.39",
    ("gru", "fusedmax"): "82.41",
    ("gru", "oscarmax"): "81.76",
}
"""Test accuracy on SNLI: Table 2 of the SparseMAP paper, with the percentage of nonzero weights,
and Table 1 of the regularized-attention paper."""
COLUMNS = (
    "data",
    "model",
    "alignment",
    "seeds",
    "epochs",
    "dev accuracy, best epoch",
    "nonzero",
    "CPU s per epoch",
    "CPU time, softmax = 1",
    "paper, SNLI test",
)


def table(found: Sequence[summary.Run]) -> str:
    """A row per data, model and alignment, averaged over seeds, in Markdown."""
    groups = summary.grouped(sorted(found, key=_place), ("data", "model", "alignment"))
    rows = []
    for (data, model, alignment), members in groups.items():
        best = summary.best(members, "accuracy")
        softmax = groups.get((data, model, "softmax"))
        seconds = summary.seconds(members)
        rows.append(
            (
                data,
                model,
                alignment,
                str(len(members)),
                summary.epochs(members),
                summary.spread([record["accuracy"] for record in best]),
                f"{fmean(record['nonzero'] for record in best):.0f}%",
                f"{seconds:.1f}",
                f"{seconds / summary.seconds(softmax):.2f}" if softmax else "–",
                PAPER.get((model, alignment), "–"),
            )
        )
    return tables.markdown(COLUMNS, rows)


def _place(run: summary.Run) -> tuple[str, str, int]:
    return run["data"], run["model"], MODELS[run["model"]][1].index(run["alignment"])
