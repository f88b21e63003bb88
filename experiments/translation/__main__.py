"""Translation of Multi30k between German and English.

    python -m experiments.translation run DATA         both directions, α of 1, 1.5 and 2
    python -m experiments.translation attention DATA   German to English, a softmax output, and the
                                                       attention mappings of the second paper
    python -m experiments.translation timing DATA      the time of an epoch with each of these
    python -m experiments.translation pictures DATA    attention of the models of `attention`

DATA is a folder with train.de, train.en, val.de and val.en, plain or with .gz, and maybe
covered-test2016.de and covered-test2017.en, which the models of `run` translate. What is trained or
evaluated already is kept, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .. import command, files, recipe, tables

CONFIG = Path(__file__).with_name("config.yaml")
ATTENTIONS = ("softmax", "sparsemax", "fusedmax", "oscarmax", "pnormmax")
ALPHAS = ("1", "1.5", "2")
COVERED = {"de-en": "covered-test2016.de", "en-de": "covered-test2017.en"}
MAX_WORDS = 12
"""The most words of a sentence in a picture, so that it can be read."""
LENGTH_POWER = 1.0
"""Of softmax outputs, whose search prefers short outputs: log-probability per token decides."""
SEARCH = (
    "A beam of 5; softmax outputs are ranked by log-probability per token, others by probability."
)
PAPER_NONZEROS = {"1": (24.25, 17993.0), "1.5": (5.55, 16.13), "2": (3.75, 7.55)}
"""Attended source words and possible target words on IWSLT 2017 German to English (Table 3)."""
PAPER_TIMES = {"sparsemax": 1.15, "fusedmax": 1.54, "oscarmax": 1.71, "pnormmax": 3.54}
"""The second paper's times per epoch, as multiples of softmax's (its Table 5)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code."""
    return command.run_subcommand(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.translation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = recipe.data_options("translation")
    several = recipe.training_options()
    strength = recipe.strength_options()
    run = commands.add_parser("run", parents=[shared, several], help="α of 1, 1.5 and 2")
    run.add_argument(
        "--directions", nargs="+", choices=("de-en", "en-de"), default=["de-en", "en-de"]
    )
    run.add_argument("--alphas", nargs="+", choices=ALPHAS, default=list(ALPHAS))
    run.set_defaults(run=_run)
    attention = commands.add_parser(
        "attention", parents=[shared, several, strength], help="mappings"
    )
    attention.set_defaults(run=_attention)
    timing = commands.add_parser("timing", parents=[shared, strength], help="the time of an epoch")
    timing.add_argument("--steps", type=int, help="in a round (default: those of an epoch)")
    timing.add_argument("--rounds", type=int, default=5)
    timing.set_defaults(run=_timing)
    pictures = commands.add_parser(
        "pictures", parents=[shared, strength], help="attention as pictures"
    )
    pictures.add_argument("--sentences", type=int, default=6)
    pictures.set_defaults(run=_pictures)
    return parser


def attentions(gamma: float) -> dict[str, Any]:
    """The attention mappings by name, of that strength."""
    return {name: recipe.attention(name, gamma) for name in ATTENTIONS}


def _files(data: Path, split: str, direction: str) -> dict[str, str]:
    source, target = direction.split("-")
    return {
        "source": recipe.find(data, f"{split}.{source}"),
        "target": recipe.find(data, f"{split}.{target}"),
    }


def _overrides(arguments: argparse.Namespace, direction: str, **values: Any) -> list[str]:
    train, validation = (_files(arguments.data, name, direction) for name in ("train", "val"))
    given = {f"{key.replace('__', '.')}": value for key, value in values.items()}
    given |= {"data.train": train, "data.validation": validation}
    return recipe.overrides(given, arguments)


def _length_power(output: Any) -> list[str]:
    """The options of search for a mapping of the output."""
    return ["--length-power", f"{LENGTH_POWER:g}"] if output == "softmax" else []


def _train(arguments: argparse.Namespace, models: dict[str, tuple[str, Any, Any]]) -> int:
    """Trains and evaluates models, by name: direction, attention and output."""
    todo = []
    for name, (direction, attention, output) in models.items():
        for seed in arguments.seeds:
            folder = arguments.output / f"{name}-{seed}"
            words = _overrides(
                arguments,
                direction,
                model__attention=attention,
                model__output=output,
                training__seed=seed,
            )
            search = _length_power(output)
            val = _files(arguments.data, "val", direction).values()
            then = recipe.covered_predictions(arguments.data, COVERED[direction], folder, *search)
            todo.append(recipe.training_job(folder, CONFIG, words, [*val, *search], then))
    return 0 if recipe.run(todo, arguments) else 1


def _rows(arguments: argparse.Namespace, names: Sequence[str]) -> list[dict[str, Any]]:
    """What was found of each model and seed."""
    rows = []
    for name in names:
        for seed in arguments.seeds:
            folder = arguments.output / f"{name}-{seed}"
            found = recipe.evaluation(folder)
            if found is not None:
                rows.append({"model": name, "seed": seed, **found, **tables.training(folder)})
    return rows


def _cells(row: dict[str, Any]) -> list[Any]:
    scores, sparsity = row["scores"], row["sparsity"]
    return [
        row["seed"], scores["BLEU"], scores["chrF"], sparsity["attention_nonzeros"],
        sparsity["output_nonzeros"], sparsity["exact"], row["epochs"], row["minutes"],
    ]  # fmt: skip


COLUMNS = (
    "seed", "BLEU", "chrF", "attention nonzeros", "output nonzeros", "exact, %", "epochs",
    "minutes",
)  # fmt: skip


def _run(arguments: argparse.Namespace) -> int:
    models = {
        f"{direction}-{alpha}": (
            direction,
            recipe.mapping(float(alpha)),
            recipe.mapping(float(alpha)),
        )
        for direction in arguments.directions
        for alpha in arguments.alphas
    }
    code = _train(arguments, models)
    rows = _rows(arguments, list(models))
    cells = []
    for row in rows:
        direction, alpha = row["model"].rsplit("-", 1)
        nonzeros = PAPER_NONZEROS[alpha] if direction == "de-en" else (None, None)
        cells.append([direction, alpha, *_cells(row), *nonzeros])
    columns = ("direction", "α", *COLUMNS, "paper's attention nonzeros", "paper's output nonzeros")
    title = (
        "# Translation of Multi30k, validation set, the same α for attention and output\n\n"
        "The paper's nonzeros are of another corpus, IWSLT 2017, with a vocabulary of 17993. "
        f"{SEARCH}\n\n"
    )
    text = title + tables.markdown(columns, cells)
    tables.write(arguments.output, "results-alpha", text, {"results": rows})
    return code


def _attention(arguments: argparse.Namespace) -> int:
    gamma, ending = arguments.gamma, recipe.ending(arguments.gamma)
    models = {
        f"attention-{name}{ending}": ("de-en", mapping, "softmax")
        for name, mapping in attentions(gamma).items()
    }
    code = _train(arguments, models)
    names = dict(zip(models, ATTENTIONS, strict=True))
    rows = _rows(arguments, list(models))
    cells = [[names[row["model"]], *_cells(row)] for row in rows]
    title = (
        "# German to English, validation set, a softmax output and several attentions, "
        f"γ = {gamma:g}\n\n{SEARCH}\n\n"
    )
    text = title + tables.markdown(("attention", *COLUMNS), cells)
    tables.write(arguments.output, f"results-attention{ending}", text, {"results": rows})
    return code


def _timing(arguments: argparse.Namespace) -> int:
    from fenchel.seq2seq import load_config

    from .timing import seconds_per_epoch

    config = load_config(CONFIG, _overrides(arguments, "de-en", model__output="softmax"))
    found = seconds_per_epoch(
        config, attentions(arguments.gamma), arguments.steps, arguments.rounds
    )
    cells = [
        [name, seconds, seconds / found["softmax"], PAPER_TIMES.get(name)]
        for name, seconds in found.items()
    ]
    title = "# Seconds per epoch, German to English, as multiples of a softmax attention's\n\n"
    columns = ("attention", "seconds", "multiple", "paper's multiple")
    text = title + tables.markdown(columns, cells)
    tables.write(arguments.output, "results-timing", text, {"seconds": found})
    return 0


def _pictures(arguments: argparse.Namespace) -> int:
    from ..pictures import draw

    source = _files(arguments.data, "val", "de-en")["source"]
    short = (line for line in files.lines(source) if 0 < len(line.split()) <= MAX_WORDS)
    sentences = list(islice(short, arguments.sentences))
    ending = f"{recipe.ending(arguments.gamma)}-0"
    trained = [arguments.output / f"attention-{name}{ending}" for name in ATTENTIONS]
    trained = [folder for folder in trained if folder.is_dir()]
    if not trained:
        raise FileNotFoundError(f"{arguments.output} holds no model; train some with `attention`.")
    for folder in trained:
        for path in draw(folder, sentences, arguments.output / "pictures"):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
