"""Many runs in parallel: the learning rate of each loss is tuned on dev, then seeds are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import jobs, runs
from .table import best_rate

PREDICTIONS = "covered-test.conllu.gz"
RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)
"""The paper's grid."""
Setting = tuple[str, float, int]
"""A loss, a learning rate and a seed."""


@dataclass(frozen=True)
class Sweep:
    """Runs over losses, learning rates and seeds.

    What is finished is kept, so the same sweep goes on where it was stopped. Every parser parses
    the covered test, if the data have one.

    Args:
        folder: gets a folder for each run.
        data: holds the treebank.
        losses, rates: the grid.
        tuning_seeds: seeds of the runs that choose a rate.
        seeds: those of the best rate.
        epochs, batch: of every run.
        num_parallel: how many runs at a time, each on one thread.
    """

    folder: Path
    data: Path
    losses: Sequence[str]
    rates: Sequence[float]
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]
    epochs: int
    batch: int
    num_parallel: int

    def run(self) -> None:
        """Trains with every rate and the tuning seeds, then with the best rate and all seeds.

        While the best rate is at an end of the grid, the next one, half or twice as large, is
        tried, as in the paper.

        Raises:
            ValueError: if a run failed.
        """
        todo = [(loss, lr, seed) for seed in self.tuning_seeds
                for lr in self.rates for loss in self.losses]  # fmt: skip
        chosen: dict[str, float] = {}
        while todo:
            self._train(todo)
            chosen = {loss: self._best_rate(loss) for loss in self.losses}
            ends = [(loss, self._next_rate(loss, rate)) for loss, rate in chosen.items()]
            todo = [(loss, lr, seed) for loss, lr in ends if lr for seed in self.tuning_seeds]
        self._train([(loss, chosen[loss], seed) for seed in self.seeds for loss in self.losses])

    def _train(self, settings: Sequence[Setting]) -> None:
        failed = jobs.run([self._job(*setting) for setting in settings], self.num_parallel)
        if failed:
            raise ValueError(f"{', '.join(job.name for job in failed)} failed; see the logs.")

    def _job(self, loss: str, rate: float, seed: int) -> jobs.Job:
        run = self.folder / f"{loss}-{rate:g}-{seed}"
        words = ["--data", str(self.data), "--run", str(run), "--loss", loss, "--threads", "1"]
        words += ["--lr", f"{rate:g}", "--seed", str(seed)]
        words += ["--epochs", str(self.epochs), "--batch", str(self.batch)]
        commands = [["experiments.dependency_parsing", "train", *words]]
        covered = sorted(self.data.glob("*covered-test.conllu"))
        if covered:
            words = ["--run", str(run), "--input", str(covered[0])]
            words += ["--output", str(run / PREDICTIONS)]
            commands.append(["experiments.dependency_parsing", "parse", *words])
        is_finished = len(runs.read_history(run)) >= self.epochs
        is_parsed = not covered or (run / PREDICTIONS).exists()
        return jobs.Job(run.name, [] if is_finished and is_parsed else commands, run / "job.log")

    def _tried(self, loss: str) -> list[dict]:
        """The runs of a loss, those of the tuning seeds alone."""
        folders = [path for path in self.folder.glob(f"{loss}-*") if (path / runs.OPTIONS).exists()]
        found = [run for run in runs.gather(folders) if run["loss"] == loss]
        return [run for run in found if run["seed"] in self.tuning_seeds]

    def _best_rate(self, loss: str) -> float:
        return best_rate(self._tried(loss))

    def _next_rate(self, loss: str, best: float) -> float | None:
        """The next rate, if the best one is at an end of those tried."""
        rates = {run["lr"] for run in self._tried(loss)}
        if best == min(rates):
            return best / 2
        return 2 * best if best == max(rates) else None
