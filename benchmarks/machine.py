"""What a result was measured on: hardware, versions and commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fenchel


def cpu() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def slug(hardware: str) -> str:
    """The name of a processor for a file."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-") or "unknown"


def commit() -> str:
    """The commit of the code, with "-dirty" where files differ from it."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return done.stdout.strip()


def _jiffies() -> list[int] | None:
    """Time of all cores so far, by kind: user, nice, system, idle, waiting, …"""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    return [int(word) for word in line.split()[1:]]


def other_load() -> float | None:
    """The share of all cores that other processes use, watched for a second; None if unknown."""
    before = _jiffies()
    time.sleep(1)
    after = _jiffies()
    if before is None or after is None:
        return None
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return round(1 - (spent[3] + spent[4]) / max(1, sum(spent)), 2)


def version(package: str) -> str:
    """An installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe() -> dict[str, Any]:
    """All of it, as the head of a results file states it."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fenchel": fenchel.__version__,
        "entmax": version("entmax"),
        "commit": commit(),
    }
