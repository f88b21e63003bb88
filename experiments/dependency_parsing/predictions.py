"""The heads that the best parsers give to the sentences of a covered test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .. import files, runs, summary
from .conllu import read_conllu
from .sweep import PREDICTIONS
from .table import best_rate


def save(folders: Iterable[Path], output: Path) -> None:
    """Writes a file for each treebank and loss, of the seed with the best dev UAS among the runs
    with the best learning rate: a line of heads for each sentence.

    Args:
        folders: of runs; those without predictions are left out.
        output: gets the folder `predictions`.
    """
    parsed = sorted(folder for folder in folders if (folder / PREDICTIONS).exists())
    found = [{**runs.gather([folder])[0], "folder": folder} for folder in parsed]
    for (data, loss), tried in summary.grouped(found, ("data", "loss")).items():
        rate = best_rate(tried)
        members = [run for run in tried if run["lr"] == rate]
        best = max(members, key=lambda run: summary.best([run], "uas")[0]["uas"])
        sentences = read_conllu(best["folder"] / PREDICTIONS)
        lines = [" ".join(map(str, sentence.heads)) for sentence in sentences]
        files.write_lines(output / "predictions" / f"{data}-{loss}.heads.gz", lines)
