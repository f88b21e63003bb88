"""Grapheme-to-phoneme conversion: SIGMORPHON 2020 task 1, a model for each language.

    python -m experiments.grapheme_to_phoneme run DATA --jobs 8

DATA is a folder with LANGUAGE_train.tsv, LANGUAGE_dev.tsv and LANGUAGE_covered-test.txt. `run`
trains a model of each α (the same for attention and output) and seed, evaluates it on the dev
words, predicts the covered test, and writes the table. What is trained or evaluated already is
kept, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import command, jobs, recipe, tables
from . import table

CONFIG = Path(__file__).with_name("config.yaml")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    return command.run_subcommand(_parser(), argv)


def languages(data: Path) -> list[str]:
    """The languages with training words.

    Raises:
        FileNotFoundError: if there are none.
    """
    ending = "_train.tsv"
    found = sorted(path.name[: -len(ending)] for path in data.glob(f"*{ending}"))
    if not found:
        raise FileNotFoundError(f"{data} holds no files named LANGUAGE{ending}.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.grapheme_to_phoneme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = [recipe.data_options("grapheme_to_phoneme"), recipe.training_options()]
    run = commands.add_parser("run", parents=shared, help="train, evaluate, predict, and the table")
    run.add_argument("--languages", nargs="+", help="default: all that there are")
    run.add_argument("--alphas", type=command.number, nargs="+", default=[1.0, 1.5])
    run.set_defaults(run=_run)
    return parser


def _folder(arguments: argparse.Namespace, language: str, alpha: float, seed: int) -> Path:
    return arguments.output / f"{language}-{alpha:g}-{seed}"


def _run(arguments: argparse.Namespace) -> int:
    todo = [
        _job(arguments, language, alpha, seed)
        for seed in arguments.seeds
        for language in arguments.languages or languages(arguments.data)
        for alpha in arguments.alphas
    ]
    succeeded = recipe.run(todo, arguments)
    _table(arguments)
    return 0 if succeeded else 1


def _job(arguments: argparse.Namespace, language: str, alpha: float, seed: int) -> jobs.Job:
    folder = _folder(arguments, language, alpha, seed)
    dev = str(arguments.data / f"{language}_dev.tsv")
    values = {
        "data.train": [str(arguments.data / f"{language}_train.tsv")],
        "data.validation": [dev],
        "model.attention": recipe.mapping(alpha),
        "model.output": recipe.mapping(alpha),
        "training.seed": seed,
    }
    words = recipe.overrides(values, arguments)
    covered = f"{language}_covered-test.txt"
    then = recipe.covered_predictions(arguments.data, covered, folder, "--with-input")
    return recipe.training_job(folder, CONFIG, words, [dev], then)


def _table(arguments: argparse.Namespace) -> None:
    """Writes the table of all that has been evaluated."""
    results: list[dict[str, Any]] = []
    for language in arguments.languages or languages(arguments.data):
        for alpha in arguments.alphas:
            for seed in arguments.seeds:
                folder = _folder(arguments, language, alpha, seed)
                found = recipe.evaluation(folder)
                if found is None:
                    continue
                about = {"language": language, "alpha": alpha, "seed": seed}
                results.append({**about, **found, "training": tables.training(folder)})
    tables.write(arguments.output, "results", table.page(results), {"results": results})


if __name__ == "__main__":
    sys.exit(main())
