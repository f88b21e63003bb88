"""What the experiments with latent variables share: estimators by name, epochs, the commands."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fenchel
from fenchel import plots
from fenchel.latent import History, estimators

from . import command, jobs, runs, summary, tables

COOLING_RATE, COOLING_STEPS, MIN_TEMPERATURE = 1e-4, 500, 0.5
"""The temperature of a relaxation is max(MIN_TEMPERATURE, exp(−COOLING_RATE · step)), with the step
rounded down to a multiple of COOLING_STEPS."""
KINDS = {int: command.count, float: command.number, type(None): Path}
"""How an option is read, by the type of its default."""
FACTS = ("epoch", "loss", "seconds", "cpu_seconds", "calls", "calls_p10", "calls_p90", "exact")
TOTAL_CALLS = "median decoder calls, summed over epochs"
Builder = Callable[[int], Any]
"""From the number of inputs of a learned baseline to an estimator."""


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
    yield from runs.with_progress(torch.randperm(count).to(device).split(size))


def adam(model: nn.Module, lr: float) -> torch.optim.Adam:
    """Adam, in one pass over each parameter."""
    return torch.optim.Adam(model.parameters(), lr, fused=True)


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

    def batches(self, count: int, size: int, device: str) -> Iterator[Tensor]:
        """An epoch's batches of indices; counts the steps, and sets the estimator's temperature."""
        done = int(self.steps)  # once, since reading it waits for a GPU
        for chosen in batches(count, size, device):
            if isinstance(self.estimator, estimators.GumbelSoftmax):
                self.estimator.temperature = temperature(done)
            done += 1
            yield chosen
        self.steps.fill_(done)


def temperature(step: int) -> float:
    """The temperature of a relaxation at a step."""
    return max(MIN_TEMPERATURE, math.exp(-COOLING_RATE * (step // COOLING_STEPS * COOLING_STEPS)))


def calls(history: History) -> dict[str, float]:
    """Ends an epoch: the decoder calls per item, and the share of items that were exact."""
    row = history.close()
    return {
        "calls": row["median"],
        "calls_p10": row["p10"],
        "calls_p90": row["p90"],
        "exact": row["exact"],
    }


def _curves(history: runs.History, measure: str) -> dict[str, list[float]]:
    """What is drawn of a run."""
    median = [record["calls"] for record in history]
    return {
        measure: [record[measure] for record in history],
        "calls": median,
        TOTAL_CALLS: list(itertools.accumulate(median)),
    }


def _label(run: summary.Run, varied: Sequence[str]) -> str:
    """What a picture calls a run."""
    return ", ".join([run["estimator"], *(f"{name} {run[name]}" for name in varied)])


def _draw(lines: dict, names: Sequence[str], over: str | None, path: Path) -> None:
    shown = {label: {name: line[name] for name in names} for label, line in lines.items()}
    plots.plot_histories(shown, over).savefig(path, dpi=110)


@dataclass(frozen=True)
class Experiment:
    """A recipe and how its runs are grouped.

    Args:
        name: the module's.
        title: heads the table.
        estimators: those it compares.
        train: `train(folder, data, estimator=…, epochs=…, …)` to a history.
        measure: the figure that says which epoch is best, the larger the better.
        figures: what the table shows, from the figure's name to its heading.
        paper: what the paper says, by estimator.
        options: from an option's name to its default, and what --quick sets it to.
        tuned: defaults for some estimators, found by a search; not with --quick.
        variants: the options, besides the estimator, by which runs are always grouped; they are
            grouped by others, too, in which they differ.
        data: what the command line says of `--data`.
        may_be_zero: options that count what may be missing.
        slow: estimators that --quick leaves out unless they are named.
        prepare: `prepare(data, folder, device)` makes the files that runs of a folder share, before
            they start in parallel.
    """

    name: str
    title: str
    estimators: Sequence[str]
    train: Callable[..., runs.History]
    measure: str
    figures: Mapping[str, str]
    paper: Mapping[str, str]
    options: Mapping[str, tuple[Any, Any]]
    variants: tuple[str, ...] = ()
    data: str = "folder of train-images and train-labels, IDX"
    may_be_zero: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prepare: Callable[[Path, Path, str], Any] | None = None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Runs a command; its exit code."""
        return command.run(self._parser(), arguments)

    @property
    def results(self) -> Path:
        """Where the table goes by default."""
        return Path(__file__).parent / self.name / "results"

    def run_train(
        self,
        run: Path | None,
        data: Path,
        estimator: Sequence[str] | None,
        quick: bool,
        num_parallel: int,
        **given: Any,
    ) -> None:
        """Trains with each estimator named, or resumes; several in parallel, each a process.

        Raises:
            ValueError: if a process failed.
        """
        parent = run or Path("runs") / self.name / ("quick" if quick else "full")
        todo: dict[Path, dict[str, Any]] = {}
        for name in estimator or [n for n in self.estimators if not (quick and n in self.slow)]:
            options = self._options(name, quick, given)
            label = "-".join([name, *(str(options[o]) for o in self.variants)])
            todo[parent / f"{label}-{options['seed']}"] = options
        if num_parallel > 1:
            self._in_parallel(todo, data, parent, num_parallel)
        for folder, options in todo.items():
            history = (
                runs.read_history(folder)
                if num_parallel > 1
                else self.train(folder, data, **options)
            )
            best = max(history, key=lambda record: record[self.measure])
            print(f"{folder}: best {self.measure} {best[self.measure]:.4g}, epoch {best['epoch']}")

    def _options(self, estimator: str, quick: bool, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, and elsewhere the defaults for the estimator."""
        defaults = {name: pair[quick] for name, pair in self.options.items()}
        defaults |= {} if quick else self.tuned.get(estimator, {})
        chosen = {name: value for name, value in given.items() if value is not None}
        return {**dict.fromkeys(given), **defaults, **chosen, "estimator": estimator}

    def _in_parallel(
        self, todo: Mapping[Path, Mapping[str, Any]], data: Path, parent: Path, num_parallel: int
    ) -> None:
        if self.prepare is not None:
            self.prepare(data, parent, next(iter(todo.values()))["device"])
        work = []
        for folder, options in todo.items():
            words = [f"experiments.{self.name}", "train", "--data", str(data), "--run", str(parent)]
            for name, value in options.items():
                if value is not None:
                    words += [f"--{name.replace('_', '-')}", str(value)]
            work.append(jobs.Job(folder.name, [words], folder / "log.txt"))
        failed = jobs.run(work, num_parallel)
        if failed:
            raise ValueError(f"{', '.join(job.name for job in failed)} failed; see the logs.")

    def run_table(self, run: Sequence[Path], output: Path, epochs: int | None = None) -> None:
        """Gathers runs into results.json, table.md and pictures, one line per estimator and
        setting.

        With `epochs`, only the first so many epochs of each run count.
        """
        found = [{**one, "history": one["history"][:epochs]} for one in runs.gather(run)]
        summary.save(found, self.table, output, self.title)
        for variant, members in summary.grouped(found, self.variants).items():
            varied = self._varied(members)
            lines = {_label(run, varied): _curves(run["history"], self.measure) for run in members}
            suffix = "".join(f"-{value}" for value in variant)
            _draw(lines, ("calls", self.measure), None, output / f"epochs{suffix}.png")
            _draw(lines, (TOTAL_CALLS, self.measure), TOTAL_CALLS, output / f"calls{suffix}.png")
        print(self.table(found))

    def table(self, found: Sequence[summary.Run]) -> str:
        """A row per estimator and setting, averaged over seeds, in Markdown."""
        order = sorted(found, key=lambda run: self.estimators.index(run["estimator"]))
        settings = (*self.variants, *self._varied(found))
        groups = summary.grouped(order, ("estimator", *settings))
        head = ["estimator", *settings, "seeds", "epochs", *self.figures.values()]
        head += [
            f"{self.measure}, last epoch",
            "decoder calls, last epoch (10–90%)",
            TOTAL_CALLS,
            "exact",
            "CPU s per epoch",
            "paper",
        ]
        rows = []
        for (name, *setting), members in groups.items():
            best = summary.best(members, self.measure)
            last = [run["history"][-1] for run in members]
            mean = {k: sum(r[k] for r in last) / len(last) for k in FACTS[4:]}
            spread = f"{mean['calls']:g} ({mean['calls_p10']:g}–{mean['calls_p90']:g})"
            figures = [summary.spread_of(best, key) for key in self.figures]
            counts = [*map(str, setting), str(len(members)), summary.epochs(members)]
            total = [_curves(run["history"], self.measure)[TOTAL_CALLS][-1] for run in members]
            costs = [spread, f"{sum(total) / len(total):g}", f"{mean['exact']:.0%}"]
            costs += [f"{summary.seconds(members):.1f}"]
            ends = summary.spread([record[self.measure] for record in last])
            rows.append([name, *counts, *figures, ends, *costs, self.paper.get(name, "–")])
        return tables.markdown(head, rows)

    def _varied(self, found: Sequence[summary.Run]) -> tuple[str, ...]:
        """The options, besides variants, in which runs differ."""
        names = [name for name in ("data", *self.options) if name not in self.variants]
        return tuple(name for name in names if len({run.get(name) for run in found}) > 1)

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m experiments.{self.name}")
        commands = parser.add_subparsers(required=True)
        one = commands.add_parser("train", help="train, or resume runs that were killed")
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
        one.add_argument(
            "--minutes", type=command.number, help="end a run after the epoch when they pass"
        )
        one.add_argument(
            "--jobs",
            dest="num_parallel",
            metavar="N",
            type=command.count,
            default=1,
            help="runs in parallel, each a process (default: 1)",
        )
        one.add_argument("--device", default=command.device())
        one.add_argument("--threads", type=command.count, help="of the CPU (default: all)")
        for name, (full, quick) in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            kind: Any = command.whole if name in self.may_be_zero else KINDS[type(full)]
            tuned = {e: own[name] for e, own in self.tuned.items() if name in own}
            also = "".join(f", {e} {value}" for e, value in tuned.items())
            one.add_argument(flag, type=kind, help=f"default: {full}{also}, with --quick {quick}")
        one = commands.add_parser("table", help="gather runs into a table and a picture")
        one.set_defaults(command=self.run_table)
        one.add_argument("run", type=Path, nargs="+", help="folders of runs")
        one.add_argument("--epochs", type=command.count, help="use the first epochs alone")
        one.add_argument(
            "--output", type=Path, default=self.results, help="default: results/ there"
        )
        return parser
