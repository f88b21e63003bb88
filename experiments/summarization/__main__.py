"""Summarization: the subject of an email from its body, with several attention mappings.

    python -m experiments.summarization run DATA        trains, evaluates, predicts; the table
    python -m experiments.summarization pictures DATA   attention on sentences of our own

DATA is a folder with train.tsv and dev.tsv, lines `body TAB subject`, and maybe covered-test.txt,
plain or with .gz: the Annotated Enron Subject Line Corpus. What is trained or evaluated already is
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
ATTENTIONS = ("softmax", "sparsemax", "fusedmax", "oscarmax", "entmax")
OUTPUT = "softmax"
SEARCH = ("--length-power", "1", "--max-length", "40")
"""As is usual for softmax outputs, log-probability per token ranks them; a subject is short."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    return command.run_subcommand(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.summarization",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = [recipe.data_options("summarization"), recipe.training_options()]
    shared.append(recipe.strength_options())
    for name, function in (("run", _run), ("pictures", _pictures)):
        one = commands.add_parser(name, parents=shared)
        one.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS))
        one.set_defaults(run=function)
    return parser


def _folder(arguments: argparse.Namespace, attention: str, seed: int) -> Path:
    return arguments.output / f"{attention}{recipe.ending(arguments.gamma)}-{seed}"


def _run(arguments: argparse.Namespace) -> int:
    todo = [
        _job(arguments, attention, seed)
        for seed in arguments.seeds
        for attention in arguments.attentions
    ]
    succeeded = recipe.run(todo, arguments)
    _table(arguments)
    return 0 if succeeded else 1


def _job(arguments: argparse.Namespace, attention: str, seed: int) -> jobs.Job:
    folder = _folder(arguments, attention, seed)
    train, dev = (recipe.find(arguments.data, name) for name in ("train.tsv", "dev.tsv"))
    values = {
        "data.train": [train],
        "data.validation": [dev],
        "model.attention": recipe.attention(attention, arguments.gamma),
        "model.output": OUTPUT,
        "training.seed": seed,
    }
    then = recipe.covered_predictions(arguments.data, "covered-test.txt", folder, *SEARCH)
    words = recipe.overrides(values, arguments)
    return recipe.training_job(folder, CONFIG, words, [dev, *SEARCH], then)


def _table(arguments: argparse.Namespace) -> None:
    """Writes the table of all that has been evaluated."""
    results: list[dict[str, Any]] = []
    for attention in arguments.attentions:
        for seed in arguments.seeds:
            folder = _folder(arguments, attention, seed)
            found = recipe.evaluation(folder)
            if found is not None:
                about = {"attention": attention, "seed": seed, "gamma": arguments.gamma}
                results.append({**about, **found, "training": tables.training(folder)})
    name = f"results{recipe.ending(arguments.gamma)}"
    tables.write(arguments.output, name, table.page(results), {"results": results})


def _pictures(arguments: argparse.Namespace) -> int:
    from ..pictures import draw

    for attention in arguments.attentions:
        folder = _folder(arguments, attention, arguments.seeds[0])
        if folder.is_dir():
            for path in draw(folder, table.SENTENCES, arguments.output / "pictures"):
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
