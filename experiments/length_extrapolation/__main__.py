"""The command line: `python -m experiments.length_extrapolation --time-limit 500`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import command
from . import cache, evaluate, language, table
from .settings import (
    ATTENTIONS,
    QUICK,
    QUICK_CACHE,
    QUICK_LANGUAGE,
    CacheSettings,
    LanguageSettings,
    Settings,
)
from .tasks import TASKS
from .train import Clock, OutOfTimeError

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code."""
    return command.run(_parser(), arguments)


def run_train(
    run: Path,
    quick: bool,
    device: str,
    time_limit: float | None,
    task: list[str],
    attention: list[str],
    **given: Any,
) -> None:
    """Trains and tests what is not done yet."""
    settings = _settings(QUICK if quick else Settings(), given)
    _report(lambda: evaluate.run(run, task, attention, settings, device, Clock(time_limit)))


def run_language(
    run: Path,
    quick: bool,
    device: str,
    time_limit: float | None,
    data: Path,
    attention: list[str],
    **given: Any,
) -> None:
    """Trains the language models that are not done yet."""
    settings = _settings(QUICK_LANGUAGE if quick else LanguageSettings(), given)
    _report(lambda: language.run(run, data, attention, settings, device, Clock(time_limit)))


def run_cache(
    run: Path,
    quick: bool,
    device: str,
    time_limit: float | None,
    data: Path,
    attention: list[str],
    positions: list[str],
    **given: Any,
) -> None:
    """Trains models with a long context, and measures what they read of their caches."""
    settings = _settings(QUICK_CACHE if quick else CacheSettings(), given)
    clock = Clock(time_limit)
    _report(lambda: cache.run(run, data, attention, positions, settings, device, clock))


def run_table(run: Path, output: Path) -> None:
    """Writes tables and pictures."""
    for path in table.save(run, output):
        print(f"{path.read_text(encoding='utf-8')}\nAlso in {path}.")


def _report(work: Any) -> None:
    try:
        results = work()
    except OutOfTimeError:
        print("The time is over; the same command goes on.")
    else:
        print(f"Done: {results.path}, {len(results.rows)} rows. `table` makes tables of it.")


def _settings(default: Any, given: dict[str, Any]) -> Any:
    chosen = {name: value for name, value in given.items() if value is not None}
    if "lengths" in chosen:
        chosen["lengths"] = tuple(chosen["lengths"])
    return dataclasses.replace(default, **chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.length_extrapolation")
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("train", help="train on short sequences and test on long ones")
    one.set_defaults(command=run_train)
    _add_choice(one, "task", list(TASKS))
    _add_choice(one, "attention", list(ATTENTIONS))
    _add_shared(one, Settings(), QUICK)

    one = commands.add_parser("language", help="train the language models")
    one.set_defaults(command=run_language)
    _add_data(one)
    _add_choice(one, "attention", list(language.KINDS))
    _add_shared(one, LanguageSettings(), QUICK_LANGUAGE)

    one = commands.add_parser("cache", help="measure which pages of a cache trained models read")
    one.set_defaults(command=run_cache)
    _add_data(one)
    _add_choice(one, "attention", list(cache.KINDS))
    _add_choice(one, "positions", list(cache.POSITIONS))
    _add_shared(one, CacheSettings(), QUICK_CACHE)

    one = commands.add_parser("table", help="make tables and pictures of a run")
    one.set_defaults(command=run_table)
    one.add_argument("run", type=Path, help="folder of the run")
    one.add_argument("--output", type=Path, default=RESULTS, help=f"default: {RESULTS.name}/ here")
    return parser


def _add_data(one: argparse.ArgumentParser) -> None:
    one.add_argument("--data", type=Path, required=True, help="text file, or folder of input.txt")


def _add_choice(one: argparse.ArgumentParser, name: str, choices: list[str]) -> None:
    one.add_argument(
        f"--{name}",
        nargs="+",
        choices=choices,
        default=choices,
        metavar="NAME",
        help=f"one or more of {', '.join(choices)} (default: all)",
    )


def _add_shared(one: argparse.ArgumentParser, full: Any, quick: Any) -> None:
    """The options of all trainings, and one for each setting."""
    run = Path("runs/length_extrapolation")
    one.add_argument("--run", type=Path, default=run, help=f"folder of the run (default: {run})")
    one.add_argument("--quick", action="store_true", help="tiny: seconds on a CPU")
    one.add_argument("--device", default=command.device())
    one.add_argument("--threads", type=command.count, help="of the CPU (default: all)")
    one.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="stop when they have passed; the same command goes on",
    )
    for field in dataclasses.fields(full):
        value, small = getattr(full, field.name), getattr(quick, field.name)
        many = isinstance(value, tuple)
        one.add_argument(
            f"--{field.name.replace('_', '-')}",
            nargs="+" if many else None,
            type=int if many else type(value),
            help=f"default: {value}, with --quick {small}",
        )


if __name__ == "__main__":
    sys.exit(main())
