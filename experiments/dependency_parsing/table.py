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
    "learning rate",
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
    """A row per treebank and loss, with its best learning rate, averaged over seeds."""
    rows = []
    for (data, loss), tried in summary.grouped(_ordered(found), ("data", "loss")).items():
        rate = best_rate(tried)
        members = [run for run in tried if run["lr"] == rate]
        best = summary.best(members, "uas")
        rows.append(
            (
                data,
                loss,
                f"{rate:g}",
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


def page(found: Sequence[summary.Run]) -> str:
    """The table, and below it how learning rates were tuned, if they were."""
    text = table(found)
    if len({run["lr"] for run in found}) > 1:
        text += (
            f"\n\nDev UAS of each learning rate, with the seeds that all have:\n\n{rates(found)}"
        )
    return text


def rates(found: Sequence[summary.Run]) -> str:
    """How each loss was tuned: a row per treebank and loss, a column per learning rate."""
    columns = sorted({run["lr"] for run in found})
    rows = []
    for (data, loss), tried in summary.grouped(_ordered(found), ("data", "loss")).items():
        by_rate = summary.grouped(_tuning(tried), ("lr",))
        means = [_uas(by_rate[rate,]) if (rate,) in by_rate else None for rate in columns]
        rows.append((data, loss, *means))
    return tables.markdown(("treebank", "loss", *(f"{rate:g}" for rate in columns)), rows)


def best_rate(tried: Sequence[summary.Run]) -> float:
    """The learning rate with the best dev UAS, on average over the seeds that all rates have."""
    by_rate = summary.grouped(_tuning(tried), ("lr",))
    return max(by_rate, key=lambda rate: _uas(by_rate[rate]))[0]


def _tuning(tried: Sequence[summary.Run]) -> list[summary.Run]:
    """The runs with the seeds that all learning rates have."""
    seeds = [{run["seed"] for run in runs} for runs in summary.grouped(tried, ("lr",)).values()]
    shared = set.intersection(*seeds)
    return [run for run in tried if run["seed"] in shared]


def _uas(members: Sequence[summary.Run]) -> float:
    return fmean(record["uas"] for record in summary.best(members, "uas"))


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
