"""Results as a table in Markdown and as JSON."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import files


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; numbers have two decimals, and None is left empty."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = [columns, ["---"] * len(columns), *([cell(v) for v in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(folder: Path, name: str, text: str, results: Mapping[str, Any]) -> None:
    """Writes NAME.md and NAME.json, with the machine they were measured on."""
    about = machine(folder)
    hardware = f"GPU: {about['gpu']}" if about["gpu"] != "none" else f"CPU: {about['cpu']}"
    page = f"{text}\n\n{hardware}; torch {about['torch']}.\n"
    figures = json.dumps({"machine": about, **results}, ensure_ascii=False, indent=2) + "\n"
    files.write(folder / f"{name}.md", page.encode())
    files.write(folder / f"{name}.json", figures.encode())
    print(f"{text}\n\nAlso in {folder / name}.md and .json.")


def machine(folder: Path) -> dict[str, str]:
    """The machine on which the models of a folder are trained: that of the first call."""
    path = folder / "machine.json"
    if not path.exists():
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        about = {"gpu": gpu, "cpu": processor(), "torch": torch.__version__}
        folder.mkdir(parents=True, exist_ok=True)
        files.write(path, (json.dumps(about, indent=1) + "\n").encode())
    return json.loads(path.read_text(encoding="utf-8"))


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def training(folder: Path) -> dict[str, float]:
    """How long a training took: its steps, epochs and minutes."""
    with open(folder / "log.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    timed = [row for row in rows if row["seconds"]]
    seconds = float(timed[-1]["seconds"]) if timed else 0.0
    last = rows[-1] if rows else {"step": 0, "epoch": 0}
    return {"steps": int(last["step"]), "epochs": int(last["epoch"]), "minutes": seconds / 60}
