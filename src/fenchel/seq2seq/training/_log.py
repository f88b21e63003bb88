"""The log of a training: a CSV file and TensorBoard's events, to which a resumed training adds."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..._atomic import write_text

COLUMNS: tuple[str, ...] = (
    "step", "epoch", "seconds", "learning_rate", "loss", "tokens_per_second", "validation_loss",
    "token_accuracy", "accuracy", "attention_nonzeros", "output_nonzeros",
)  # fmt: skip


def _rows(file: Iterable[str]) -> Iterator[dict[str, str]]:
    """The rows of a log that have a step, up to the first that cannot be read."""
    with contextlib.suppress(csv.Error):
        yield from (row for row in csv.DictReader(file) if (row.get("step") or "").isdecimal())


class Log:
    """Writes lines to `log.csv` and, if tensorboardX is installed, to `events/`.

    Args:
        folder: of both.
        step: the step of the checkpoint. Lines of later steps, which a killed process left, are
            removed.
        measures: the names of the measures that each validation adds.
    """

    def __init__(self, folder: Path, step: int, measures: Sequence[str] = ()) -> None:
        self._path = folder / "log.csv"
        self._columns = tuple(dict.fromkeys((*COLUMNS, *measures)))
        kept: list[dict[str, str]] = []
        if step and self._path.is_file():
            with open(self._path, encoding="utf-8", errors="replace", newline="") as file:
                kept = [row for row in _rows(file) if int(row["step"]) <= step]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        if self._path.exists() and not self._path.is_file():
            raise ValueError(f"{self._path} is not a regular file: move it away.")
        write_text(self._path, text.getvalue())
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            self._events = None
        else:
            self._events = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a line."""
        with open(self._path, "a", encoding="utf-8", newline="") as file:
            row = {name: f"{value:.6g}" for name, value in values.items()}
            csv.DictWriter(file, self._columns).writerow({"step": str(step), **row})
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Closes the log."""
        if self._events is not None:
            self._events.close()
