"""What a training reports, while it runs and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ._checkpoint import Progress
from ._validation import Metrics


class DivergenceError(RuntimeError):
    """The loss is not finite, or far above the loss of a guess."""


class Callback:
    """Methods that a training calls; override any of them. Only rank 0 calls them."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def started(self, progress: Progress, max_steps: int | None) -> None:
        """Training begins, or resumes. The largest possible number of steps is None if unknown."""

    def stepped(self, progress: Progress, loss: float, rate: float) -> None:
        """`log_every` steps were taken, with this mean loss, at so many target tokens a second."""

    def validated(self, progress: Progress, metrics: Metrics, is_best: bool) -> None:
        """The model was validated, and is or is not the best so far."""


@dataclass(frozen=True)
class Summary:
    """How a training ended.

    Args:
        folder: of the best model.
        reason: why it ended.
        metrics: of the best model, on the validation pairs.
        best_step: the step of the best model.
        total_steps, seconds: of the whole training.
        averaged: how many validated models' weights the best model is the mean of.
    """

    folder: Path
    reason: str
    metrics: Metrics
    best_step: int
    total_steps: int
    seconds: float
    averaged: int = 1
