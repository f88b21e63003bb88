"""Gathers runs into a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from .. import summary, tables

COLUMNS = (
    "treebank",
    "trained on",
    "seeds",
    "epochs",
    "dev UAS, tree",
    "dev UAS, graph",
    "over a limit, tree %",
    "over a limit, graph %",
    "integral %",
    "impossible %",
    "tree CPU ms",
    "graph CPU ms",
    "CPU s per epoch",
)


def table(found: Sequence[summary.Run]) -> str:
    """A row per treebank and training, averaged over seeds, in Markdown."""
    rows = []
    ordered = sorted(found, key=lambda run: (run["data"], run["training"] != "tree"))
    for (data, training), members in summary.grouped(ordered, ("data", "training")).items():
        best = summary.best(members, f"{training}_uas")

        def mean(name: str, best: list = best) -> float:
            return fmean(record[name] for record in best)

        rows.append(
            (
                data,
                training,
                str(len(members)),
                summary.epochs(members),
                summary.spread([record["tree_uas"] for record in best]),
                summary.spread([record["graph_uas"] for record in best]),
                mean("tree_over"),
                mean("graph_over"),
                mean("integral"),
                mean("impossible"),
                mean("tree_ms"),
                mean("graph_ms"),
                f"{summary.seconds(members):.1f}",
            )
        )
    return tables.markdown(COLUMNS, rows)
