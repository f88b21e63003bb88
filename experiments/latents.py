"""What the experiments with latent variables share: estimators by name, epochs, the commands."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fenchel
from fenchel import plots
from fenchel.latent import History, estimators

from . import command, runs, summary

RATE, EVERY, COLDEST = 1e-4, 500, 0.5
"""The temperature of a relaxation is max(COLDEST, exp(−RATE · step)), set anew EVERY steps."""
FACTS = ("epoch", "loss", "seconds", "cpu_seconds", "calls", "calls_p10", "calls_p90", "exact")
IN_ALL = "median decoder calls, summed over epochs"
Builder = Callable[[int], Any]
"""From the number of features that a learned baseline sees to an estimator."""


def baseline_network(features: int) -> nn.Module:
    """A learned baseline: one hidden layer."""
    return nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 1))


def sampling(over: fenchel.Bits | None = None) -> dict[str, Builder]:
    """The estimators by samples, by name; of a categorical variable if none is given."""
    function = estimators.ScoreFunction
    return {
        "score-function": lambda features: function(over),
        "moving-average": lambda features: function(over, estimators.MovingAverage()),
        "self-critic": lambda features: function(over, estimators.SelfCritic()),
        "nvil": lambda features: function(over, estimators.Learned(baseline_network(features))),
        "gumbel": lambda features: estimators.GumbelSoftmax(over),
        "straight-through": lambda features: estimators.StraightThrough(over),
    }


CATEGORICAL: dict[str, Builder] = {
    "sparsemax": lambda features: estimators.Exact(fenchel.Sparsemax()),
    "dense": lambda features: estimators.Exact(fenchel.Softmax()),
    **sampling(),
    "sum-and-sample": lambda features: estimators.SumAndSample(),
}


def batches(count: int, size: int, device: str) -> Iterator[Tensor]:
    """All indices, in random order, in batches."""
    yield from runs.shown(torch.randperm(count).to(device).split(size))


class Trained(nn.Module):
    """What a run trains and keeps: the networks, the estimator, and the steps taken.

    Args:
        network: the model's own.
        estimator: of the gradients.
    """

    steps: Tensor

    def __init__(self, network: nn.Module, estimator: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.estimator = estimator
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def begin_step(self) -> None:
        """Counts a step, and cools an estimator that has a temperature."""
        if isinstance(self.estimator, estimators.GumbelSoftmax):
            done = int(self.steps) // EVERY * EVERY
            self.estimator.temperature = max(COLDEST, math.exp(-RATE * done))
        self.steps += 1


def calls(history: History) -> dict[str, float]:
    """Ends an epoch: the decoder calls per item, and the share of items that were exact."""
    row = history.close()
    return {
        "calls": row["median"],
        "calls_p10": row["p10"],
        "calls_p90": row["p90"],
        "exact": row["exact"],
    }


def _lines(history: runs.History, measure: str) -> dict[str, list[float]]:
    """What is drawn of a run."""
    median = [record["calls"] for record in history]
    return {
        measure: [record[measure] for record in history],
        "calls": median,
        IN_ALL: list(itertools.accumulate(median)),
    }


def _draw(lines: dict, names: Sequence[str], over: str | None, path: Path) -> None:
    shown = {label: {name: line[name] for name in names} for label, line in lines.items()}
    plots.plot_histories(shown, over).savefig(path, dpi=110)


@dataclass(frozen=True)
class Experiment:
    """A recipe and how its runs are told apart.

    Args:
        name: the module's.
        estimators: those it compares.
        train: `train(folder, data, estimator=…, epochs=…, …)` to a history.
        measure: the figure that says which epoch is best, the larger the better.
        figures: what the table shows, from the figure's name to its heading.
        paper: what the paper says, by estimator.
        options: from an option's name to its default, and what --quick sets it to.
        variants: which options tell runs apart beside the estimator.
        data: what the command line says of `--data`.
        slow: estimators that --quick leaves out unless they are named.
    """

    name: str
    estimators: Sequence[str]
    train: Callable[..., runs.History]
    measure: str
    figures: Mapping[str, str]
    paper: Mapping[str, str]
    options: Mapping[str, tuple[Any, Any]]
    variants: tuple[str, ...] = ()
    data: str = "folder of train-images and train-labels, IDX"
    slow: tuple[str, ...] = ()

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Runs a command; its exit code."""
        return command.run(self._parser(), arguments)

    @property
    def results(self) -> Path:
        """Where the table goes unless it is told."""
        return Path(__file__).parent / self.name / "results"

    def run_train(
        self,
        run: Path | None,
        data: Path,
        estimator: Sequence[str] | None,
        quick: bool,
        **options: Any,
    ) -> None:
        """Trains with each estimator named, or goes on."""
        defaults = {name: pair[quick] for name, pair in self.options.items()}
        options = {
            name: defaults[name] if value is None and name in defaults else value
            for name, value in options.items()
        }
        kind = "quick" if quick else "full"
        for name in estimator or [n for n in self.estimators if not (quick and n in self.slow)]:
            label = "-".join([name, *(str(options[o]) for o in self.variants)])
            folder = (run or Path("runs") / self.name / kind) / f"{label}-{options['seed']}"
            history = self.train(folder, data, estimator=name, **options)
            best = max(history, key=lambda record: record[self.measure])
            print(f"{folder}: best {self.measure} {best[self.measure]:.4g}, epoch {best['epoch']}")

    def run_table(self, run: Sequence[Path], output: Path) -> None:
        """Gathers runs into results.json, table.md and pictures, one line per estimator."""
        found = runs.gather(run)
        summary.save(found, self.table, output)
        for variant, members in summary.grouped(found, self.variants).items():
            lines = {run["estimator"]: _lines(run["history"], self.measure) for run in members}
            suffix = "".join(f"-{value}" for value in variant)
            _draw(lines, ("calls", self.measure), None, output / f"epochs{suffix}.png")
            _draw(lines, (IN_ALL, self.measure), IN_ALL, output / f"calls{suffix}.png")
        print(self.table(found))

    def table(self, found: Sequence[summary.Run]) -> str:
        """A row per estimator and variant, averaged over seeds, in Markdown."""
        order = sorted(found, key=lambda run: self.estimators.index(run["estimator"]))
        groups = summary.grouped(order, ("estimator", *self.variants))
        head = ["estimator", *self.variants, "seeds", "epochs", *self.figures.values()]
        head += ["decoder calls, last epoch (10–90%)", IN_ALL, "exact", "CPU s per epoch", "paper"]
        rows = []
        for (name, *variant), members in groups.items():
            best = summary.best(members, self.measure)
            last = [run["history"][-1] for run in members]
            mean = {k: sum(r[k] for r in last) / len(last) for k in FACTS[4:]}
            spread = f"{mean['calls']:g} ({mean['calls_p10']:g}–{mean['calls_p90']:g})"
            figures = [summary.spread([record[key] for record in best]) for key in self.figures]
            counts = [*map(str, variant), str(len(members)), summary.epochs(members)]
            in_all = [_lines(run["history"], self.measure)[IN_ALL][-1] for run in members]
            costs = [spread, f"{sum(in_all) / len(in_all):g}", f"{mean['exact']:.0%}"]
            costs += [f"{summary.seconds(members):.1f}"]
            rows.append([name, *counts, *figures, *costs, self.paper.get(name, "–")])
        return summary.markdown(head, rows)

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m experiments.{self.name}")
        commands = parser.add_subparsers(required=True)
        one = commands.add_parser("train", help="train, or go on with runs that were killed")
        one.set_defaults(command=self.run_train)
        one.add_argument("--data", type=Path, required=True, help=self.data)
        without = f", with --quick without {', '.join(self.slow)}" if self.slow else ""
        one.add_argument(
            "--estimator",
            nargs="+",
            choices=self.estimators,
            metavar="NAME",
            help=f"one or more of {', '.join(self.estimators)} (default: all in turn{without})",
        )
        one.add_argument("--run", type=Path, help="folder for runs (default: runs/EXPERIMENT/KIND)")
        one.add_argument("--quick", action="store_true", help="small: a minute or two on one core")
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        one.add_argument("--threads", type=int, help="of the CPU (default: all)")
        for name, (full, quick) in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            kind: Any = Path if full is None else type(full)
            one.add_argument(flag, type=kind, help=f"default: {full}, with --quick {quick}")
        one = commands.add_parser("table", help="gather runs into a table and a picture")
        one.set_defaults(command=self.run_table)
        one.add_argument("run", type=Path, nargs="+", help="folders of runs")
        one.add_argument(
            "--output", type=Path, default=self.results, help="default: results/ there"
        )
        return parser
