"""Rows of results in one file, which grows row by row and is never seen half written."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .. import files
from .settings import CacheSettings, LanguageSettings, Settings

Row = dict[str, Any]
AnySettings = Settings | LanguageSettings | CacheSettings
ROWS, LANGUAGE, CACHE = "rows.json", "language.json", "cache.json"
"""The files of the tasks, of the language model and of the cache in the folder of a run."""


class Results:
    """The rows of a run, on disk after each change.

    Args:
        path: of the file; it is opened again if it is there.
        settings: of the run.
        device: where it is computed.
    Raises:
        ValueError: if the file holds rows of other settings.
    """

    def __init__(self, path: Path, settings: AnySettings, device: str) -> None:
        self.path = path
        given = json.loads(json.dumps(asdict(settings)))
        self.content: dict[str, Any] = {
            "machine": _machine(device),
            "settings": given,
            "training": [],
            "rows": [],
        }
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            found = self.content["settings"]
            other = [name for name in given if found.get(name) != given[name]]
            if other:
                raise ValueError(f"{path} holds rows with other {', '.join(other)}; name another.")
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def rows(self) -> list[Row]:
        return self.content["rows"]

    def has(self, **values: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row[name] == value for name, value in values.items()) for row in self.rows)

    def add(self, rows: Sequence[Row], training: Row | None = None) -> None:
        """Adds rows, and what is known of a training that ended."""
        self.rows.extend(rows)
        if training is not None:
            self.content["training"].append(training)
        text = json.dumps(self.content, ensure_ascii=False, indent=1) + "\n"
        files.write(self.path, text.encode())


def _machine(device: str) -> dict[str, str]:
    on_gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.machine()
    return {"device": name, "torch": torch.__version__}
