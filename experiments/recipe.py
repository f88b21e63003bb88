"""What the recipes of sequence-to-sequence models share: options, jobs, and predictions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import command, jobs, tables

ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sparsemax": {},
    "fusedmax": {"lam": 0.1},
    "oscarmax": {"lam": 0.01},
    "pnormmax": {"p": 1.5},
    "entmax": {"alpha": 1.5},
}
"""Attention mappings with their options, those of the paper on regularized attention."""
EVALUATION = "evaluation.json"


def data_options(output: str) -> argparse.ArgumentParser:
    """The parent of every subcommand: data, output, and other values of the configuration."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs") / output)
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="other values for the configuration, such as training.batch_size=256",
    )
    return parser


def training_options() -> argparse.ArgumentParser:
    """The parent of subcommands that train: seeds, jobs and minutes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a model for each")
    parser.add_argument("--jobs", type=command.count, default=1, help="models trained at once")
    parser.add_argument(
        "--minutes", type=command.number, help="the most that each training may take"
    )
    parser.add_argument(
        "--table-only", action="store_true", help="train nothing: write the table of what is there"
    )
    return parser


def strength_options() -> argparse.ArgumentParser:
    """The parent of subcommands that compare attention mappings."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--gamma",
        type=command.number,
        default=1.0,
        help="the strength of each attention's regularizer (default: 1; larger attends to more)",
    )
    return parser


def attention(name: str, gamma: float = 1.0) -> Any:
    """An attention mapping of that strength, as a value of the configuration."""
    options = ATTENTIONS[name] if gamma == 1 else {**ATTENTIONS[name], "gamma": gamma}
    return {"mapping": name, **options} if options else name


def ending(gamma: float) -> str:
    """Of the names of what has that strength."""
    return "" if gamma == 1 else f"-gamma-{gamma:g}"


def mapping(alpha: float) -> Any:
    """The mapping of an α, as a value of the configuration."""
    names = {1.0: "softmax", 2.0: "sparsemax"}
    return names.get(alpha, {"mapping": "entmax", "alpha": alpha})


def overrides(values: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    """Values by key as words of a command; those of `--minutes` and `--set` come last."""
    minutes = getattr(arguments, "minutes", None)
    limit = {"training.minutes": minutes} if minutes else {}
    words = [f"{key}={json.dumps(value)}" for key, value in {**values, **limit}.items()]
    return [*words, *arguments.set]


def training_job(
    folder: Path,
    config: Path,
    words: Sequence[str],
    evaluated: Sequence[str],
    then: Mapping[Path, Sequence[str]] | None = None,
) -> jobs.Job:
    """Trains a model, evaluates it, and does what comes then; nothing if all that is done.

    Args:
        folder: of the model.
        config: the configuration file.
        words: overrides of its values.
        evaluated: files and options of `fenchel evaluate`.
        then: commands that follow, by the file that each writes.
    """
    then = then or {}
    result = folder / EVALUATION
    train = ["fenchel", "train", "--quiet", str(config), *words, f"training.folder={folder}"]
    evaluate = ["fenchel", "evaluate", str(folder), *evaluated, "--json-to", str(result)]
    is_done = all(path.exists() for path in (result, *then))
    commands = [] if is_done else [train, evaluate, *then.values()]
    return jobs.Job(folder.name, commands, folder / "job.log")


def run(todo: Sequence[jobs.Job], arguments: argparse.Namespace) -> bool:
    """Runs jobs as the options of training say, and returns whether all succeeded."""
    if arguments.table_only:
        return True
    tables.machine(arguments.output)
    return not jobs.run(todo, arguments.jobs)


def covered_predictions(data: Path, name: str, model: Path, *options: str) -> dict[Path, list[str]]:
    """The command that predicts a covered test into `predictions`, beside the model's folder.

    Args:
        data: the folder of the test; without it there is no command.
        name: of its file.
        model: a folder.
        options: of `experiments.predict`.
    """
    try:
        covered = find(data, name)
    except FileNotFoundError:
        return {}
    output = predictions(model, ".txt.gz")
    words = [str(model), "--input", covered, "--output", str(output), *options]
    return {output: ["experiments.predict", *words]}


def predictions(model: Path, suffix: str) -> Path:
    """Where the predictions of a model go: beside its folder."""
    return model.parent / "predictions" / f"{model.name}{suffix}"


def find(data: Path, name: str) -> str:
    """The path of a file of a folder, plain or compressed.

    Raises:
        FileNotFoundError: if there is none.
    """
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return str(path)
    raise FileNotFoundError(f"{data} holds neither {name} nor {name}.gz.")


def evaluation(folder: Path) -> dict[str, Any] | None:
    """What `fenchel evaluate` found of the model in a folder, if it did."""
    path = folder / EVALUATION
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
