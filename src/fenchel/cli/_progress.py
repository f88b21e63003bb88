"""The progress of a training on the terminal: a bar, and a line for every validation."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from typing_extensions import Self

from ..seq2seq.training._callback import Callback
from ..seq2seq.training._checkpoint import Progress as State
from ..seq2seq.training._validation import Metrics


class Progress(Callback):
    """Shows a bar if there is a terminal, and prints a line for every validation.

    Args:
        every: prints only every n-th validation.
    """

    def __init__(self, every: int = 1) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._every, self._validations = every, 0
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}, {task.fields[rate]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("at most"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("training", loss="…", rate="…", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._bar.disable:  # else rich 13.0 prints an empty line
            self._bar.stop()

    def note(self, text: str) -> None:
        self._console.print(f"note: {text}", markup=False, soft_wrap=True)

    def started(self, progress: State, max_steps: int | None) -> None:
        if progress.step:
            self.note(f"resuming from step {progress.step}")
        self._bar.update(self._task, completed=progress.step, total=max_steps)

    def stepped(self, progress: State, loss: float, rate: float) -> None:
        self._bar.update(
            self._task,
            completed=progress.step,
            description=f"epoch {progress.epoch + 1}",
            loss=f"{loss:.4f}",
            rate=f"{rate:,.0f}",
        )

    def validated(self, progress: State, metrics: Metrics, is_best: bool) -> None:
        self._validations += 1
        if self._validations % self._every:
            return
        scores = "".join(f"{n} {value:.2f}, " for n, value in metrics.scores.items())
        self._console.print(
            f"step {progress.step}, epoch {progress.epoch}: accuracy {metrics.accuracy:.2%}, "
            f"{scores}tokens {metrics.token_accuracy:.2%}, loss {metrics.loss:.4f}, nonzeros "
            f"{metrics.attention_nonzeros:.2f} in attention, {metrics.output_nonzeros:.2f} in "
            f"output{'; the best so far' if is_best else ''}",
            markup=False,
            soft_wrap=True,
        )
