"""The time of an epoch of training with each attention mapping."""

from __future__ import annotations

import csv
import math
import statistics
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from fenchel.seq2seq import Config, train

from ..files import lines


def seconds_per_epoch(
    config: Config, attentions: Mapping[str, Any], steps: int | None, rounds: int
) -> dict[str, float]:
    """The median time of an epoch with each attention, as `fenchel train` takes its steps.

    Every model is trained on the same batches, one model after the other. The first round, in which
    kernels are compiled and CUDA graphs recorded, is not counted.

    Args:
        config: of the training.
        attentions: mappings by name, as in a configuration.
        steps: how many a round has; None for those of an epoch.
        rounds: how many count.
    """
    pairs = sum(1 for file in config.data.train for _ in lines(file.source))  # type: ignore[union-attr]
    batches = math.ceil(pairs / config.training.batch_size)
    per_epoch = math.ceil(batches / config.training.gradient_accumulation)
    steps = min(steps or per_epoch, per_epoch)
    found = {}
    for name, attention in attentions.items():
        with tempfile.TemporaryDirectory() as folder:
            train(_config(config, attention, folder, steps, rounds + 1))
            found[name] = _median_round(Path(folder) / "log.csv") * per_epoch / steps
    return found


def _config(config: Config, attention: Any, folder: str, steps: int, rounds: int) -> Config:
    """The configuration of so many rounds, with a line of the log and no validation in each."""
    given, total = config.model_dump(), steps * rounds
    given["model"]["attention"] = attention
    given["training"] |= {"folder": folder, "log_every": steps, "steps": total, "epochs": total}
    given["training"] |= {"validate_unit": "steps", "validate_every": total}
    given["training"] |= {"checkpoint_every": total, "minutes": None}
    return Config.model_validate(given)


def _median_round(log: Path) -> float:
    """The median of the seconds between the lines of a log."""
    with open(log, encoding="utf-8", newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file) if row["seconds"]]
    return statistics.median(b - a for a, b in pairwise(seconds))
