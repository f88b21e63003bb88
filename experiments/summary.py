"""What tables of results share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from . import files

Run = dict[str, Any]


def grouped(found: Iterable[Run], names: Sequence[str]) -> dict[tuple, list[Run]]:
    """Runs that agree in those options, in the order in which they come."""
    groups: dict[tuple, list[Run]] = {}
    for run in found:
        groups.setdefault(tuple(run[name] for name in names), []).append(run)
    return groups


def best(members: Sequence[Run], measure: str) -> list[dict[str, Any]]:
    """The record of the best epoch of each run."""
    return [max(run["history"], key=lambda record: record[measure]) for run in members]


def epochs(members: Sequence[Run]) -> str:
    """How many epochs the runs have: one number or a range."""
    counts = [len(run["history"]) for run in members]
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


def seconds(members: Sequence[Run]) -> float:
    """What an epoch of training took of the processor, on average."""
    return fmean(record["cpu_seconds"] for run in members for record in run["history"])


def spread(values: Sequence[float]) -> str:
    """The mean, and with several values their standard deviation."""
    mean = f"{fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.2f}"


def spread_of(records: Sequence[dict[str, Any]], figure: str) -> str:
    """The same of a figure of records; a dash where older ones do not have it."""
    values = [record[figure] for record in records if figure in record]
    return spread(values) if len(values) == len(records) else "–"


def save(
    found: Sequence[Run], table: Callable[[Sequence[Run]], str], output: Path, title: str
) -> None:
    """Writes results.json and table.md, under a title, into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    files.write(output / "results.json", (json.dumps(found, indent=1) + "\n").encode())
    files.write(output / "table.md", f"# {title}\n\n{table(found)}\n".encode())
