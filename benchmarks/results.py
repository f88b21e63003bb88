"""Rows of results: as a table to read, and appended to a file to keep."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import machine

FOLDER = Path(__file__).parent / "results"
Row = dict[str, Any]
"""Column to value. `met` says whether the row's target is reached; None where it has none."""


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table, padded so that it is readable as it is."""
    if not rows:
        return ""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *[[_text(row.get(column)) for column in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def summary(rows: Sequence[Row]) -> str:
    """How many targets are met, and the rows that miss theirs."""
    with_target = [row for row in rows if row["met"] is not None]
    missed = [row for row in with_target if not row["met"]]
    line = f"{len(with_target) - len(missed)} of {len(with_target)} targets met."
    return f"{line}\n\nMissed:\n\n{table(missed)}" if missed else line


def pivot(rows: Sequence[Row], index: Sequence[str]) -> str:
    """The contenders side by side: microseconds, and the ratio to torch.

    Args:
        rows: with a library, a mapping of it, µs and ratio, or a note why there are none.
        index: the columns that name a line of the table.
    """
    table_rows: dict[tuple, Row] = {}
    for row in rows:
        key = tuple(row[column] for column in index)
        line = table_rows.setdefault(key, dict(zip(index, key, strict=True)))
        ratio = "" if row.get("ratio") is None else f" ({row['ratio']:.2f})"
        measured = f"{row['µs']:.0f}{ratio}" if row["µs"] else row["note"]
        line[f"{row['library']} {row['mapping']}"] = measured + " NO" * (row["met"] is False)
    return table(list(table_rows.values()))


def append(
    case: str, rows: Sequence[Row], head: Mapping[str, Any], hardware: str, folder: Path
) -> Path:
    """Appends the rows to <case>-<hardware>.jsonl by one system call, and returns its path.

    So a second run never writes between them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{case}-{machine.slug(hardware)}.jsonl"
    lines = "".join(
        json.dumps({"case": case, **head, **row}, ensure_ascii=False) + "\n" for row in rows
    )
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, lines.encode())
    finally:
        os.close(descriptor)
    return log


def write_page(
    case: str, title: str, rows: Sequence[Row], head: Mapping[str, Any], folder: Path
) -> Path:
    """Rewrites <case>.md by a rename, so that a reader never sees half of it."""
    page = folder / f"{case}.md"
    facts = "\n".join(f"- {name}: {value}" for name, value in head.items())
    text = f"# {case}\n\n{title}\n\n{facts}\n\n{summary(rows)}\n\nAll rows:\n\n{table(rows)}\n"
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, page)
    return page
