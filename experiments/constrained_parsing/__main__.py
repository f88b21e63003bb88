"""The command line: `python -m experiments.constrained_parsing train --data FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import command, runs, summary
from ..dependency_parsing.table import LOSSES
from . import table
from .train import TRAININGS, train

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code."""
    return command.run(_parser(), arguments)


def run_train(run: Path | None, data: Path, training: str, seed: int, **options: float) -> None:
    """Trains, or resumes."""
    folder = run or Path("runs") / data.resolve().name / f"{training}-{seed}"
    history = train(folder, data, training=training, seed=seed, **options)  # type: ignore[arg-type]
    best = max(history, key=lambda record: record[f"{training}_uas"])
    print(f"{folder}: best dev UAS {best[f'{training}_uas']:.2f}, in epoch {best['epoch']}")


def run_table(run: Sequence[Path], output: Path) -> None:
    """Gathers runs."""
    found = runs.gather(run)
    summary.save(found, table.table, output, "Parsing with constraints: results")
    print(table.table(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.constrained_parsing")
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("train", help="train, or resume a run that was killed (default)")
    one.set_defaults(command=run_train)
    one.add_argument("--data", type=Path, required=True, help="folder of *train* and *dev*.conllu")
    one.add_argument(
        "--training",
        choices=TRAININGS,
        default="graph",
        help="whether the loss is of trees, or of trees within their limits (default: graph)",
    )
    one.add_argument("--loss", choices=LOSSES, default="margin_sparsemap")
    one.add_argument(
        "--share",
        type=float,
        default=0.99,
        help="of a tag's training words, how many keep to its limit (default: 0.99)",
    )
    one.add_argument("--run", type=Path, help="folder (default: runs/DATA/TRAINING-SEED)")
    one.add_argument("--epochs", type=command.count, default=10, help="in all (default: 10)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--lr", type=command.number, default=1e-3, help="of Adam (default: 0.001)")
    one.add_argument(
        "--batch", type=command.count, default=16, help="sentences per step (default: 16)"
    )
    one.add_argument("--threads", type=command.count, help="of the CPU (default: all)")

    one = commands.add_parser("table", help="gather runs")
    one.set_defaults(command=run_table)
    one.add_argument("run", type=Path, nargs="+", help="folders of runs")
    one.add_argument("--output", type=Path, default=RESULTS, help=f"default: {RESULTS.name}/ here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
