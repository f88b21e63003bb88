"""What a training tells as it goes on, and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ._checkpoint import Progress
from ._validation import Metrics


class DivergenceError(RuntimeError):
    """The loss is no longer a number, or far above that of a guess."""


class Listener:
    """What hears of a training as it goes on; each method may be overridden."""

    def note(self, text: str) -> None:
        """Something a reader should know."""

    def started(self, progress: Progress, steps: int | None) -> None:
        """Training begins, or goes on; it has so many steps at most, if that is known."""

    def stepped(self, progress: Progress, loss: float, rate: float) -> None:
        """A few steps were done, with a loss, at a rate of target tokens per second."""

    def validated(self, progress: Progress, metrics: Metrics, best: bool) -> None:
        """The model was validated, and was the best so far or was not."""


@dataclass(frozen=True)
class Summary:
    """How a training ended.

    Args:
        folder: of the best model.
        reason: why it ended.
        metrics: of the best model, on the validation pairs.
        best_step: the step of the best model.
        total_steps, seconds: of the whole training.
    """

    folder: Path
    reason: str
    metrics: Metrics
    best_step: int
    total_steps: int
    seconds: float
