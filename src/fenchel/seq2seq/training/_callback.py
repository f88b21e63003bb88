"""What a training reports, while it runs and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ._checkpoint import Progress
from ._validation import Metrics


class DivergenceError(RuntimeError):
    """The loss is not finite, or far above the loss of a guess.

    >>> import tempfile
    >>> from fenchel.seq2seq import Config, train
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs = Path(folder) / "pairs.tsv"
    ...     _ = pairs.write_text("walk\\twalked\\n" * 8)
    ...     data = {"task": "text", "train": [str(pairs)], "validation": [str(pairs)]}
    ...     plan = {"folder": f"{folder}/model", "device": "cpu", "learning_rate": 1e20}
    ...     small = {"embedding": 8, "hidden": 8, "layers": 1}
    ...     train(Config(data=data, model=small, training=plan))
    Traceback (most recent call last):
        ...
    fenchel.seq2seq.training._callback.DivergenceError: ...; lower `training.learning_rate` ...
    """


class Callback:
    """Methods that a training calls; override any of them. Only rank 0 calls them.

    >>> import tempfile
    >>> from fenchel.seq2seq import Config, train
    >>> class Curve(Callback):
    ...     losses = []
    ...     def validated(self, progress, metrics, is_best):
    ...         self.losses.append(metrics.loss)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pairs = Path(folder) / "pairs.tsv"
    ...     _ = pairs.write_text("walk\\twalked\\n" * 8)
    ...     data = {"task": "text", "train": [str(pairs)], "validation": [str(pairs)]}
    ...     plan = {"folder": f"{folder}/model", "device": "cpu", "epochs": 3}
    ...     small = {"embedding": 8, "hidden": 8, "layers": 1}
    ...     _ = train(Config(data=data, model=small, training=plan), callback=Curve())
    >>> len(Curve.losses)
    3
    """

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

    >>> metrics = Metrics(0.5, 0.9, 0.8, 1.5, 1.2)
    >>> found = Summary(Path("model"), "3 epochs are done", metrics, 20, 30, 4.0)
    >>> found.best_step, found.metrics.accuracy
    (20, 0.8)
    """

    folder: Path
    reason: str
    metrics: Metrics
    best_step: int
    total_steps: int
    seconds: float
    averaged: int = 1
