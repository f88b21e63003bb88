"""`fenchel train`: trains a model from a configuration file, or resumes its training."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._choices import TASKS

if TYPE_CHECKING:
    from ..seq2seq.training._callback import Summary


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a sequence-to-sequence model from a configuration file",
        description="Trains a sequence-to-sequence model from a configuration file. Begin with an "
        "example, which explains every key: `fenchel train --example inflection > config.yaml`; "
        "then `fenchel train config.yaml`. The folder `training.folder` gets the best model (for "
        "predict, evaluate and explain), the last checkpoint, and the log as log.csv and for "
        "TensorBoard. The same command resumes a training that was stopped, from its last "
        "checkpoint. Several processes train one model together with "
        "`torchrun --nproc-per-node N -m fenchel train config.yaml`.",
        epilog=epilog,
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="the configuration file")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="overrides a value of the file, for example model.layers=1 or training.batch_size=64",
    )
    parser.add_argument(
        "--example",
        choices=TASKS,
        help="print the commented configuration file of a task, and exit",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print only the summary, and which data were left out"
    )
    parser.add_argument(
        "--allow-changed-data",
        action="store_true",
        help="resume a training although the pairs in its files have changed",
    )
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from ..seq2seq.config import _loading
    from ..seq2seq.training._callback import Callback
    from ..seq2seq.training._training import train

    if arguments.example:
        print(_loading.example(arguments.example), end="")
        return 0
    if not arguments.config:
        parser.error("name a configuration file; `--example` prints one to begin with.")
    if "=" in arguments.config and not Path(arguments.config).exists():
        parser.error(f"put the configuration file before the override {arguments.config!r}.")
    try:
        config = _loading.load_config(arguments.config, arguments.overrides)
    except _loading.ConfigError as error:
        parser.exit(2, f"fenchel train: error: {error}\n")
    first = int(os.environ.get("RANK", "0")) == 0  # of torchrun's processes, one talks
    if arguments.quiet or not first:
        callback = Callback()
        callback.note = lambda text: print(f"note: {text}", file=sys.stderr)
        summary = train(config, callback, allow_changed_data=arguments.allow_changed_data)
    else:
        from ._progress import Progress

        with Progress() as progress:
            summary = train(config, progress, allow_changed_data=arguments.allow_changed_data)
    if first:
        print(_report(summary))
    return 0


def _report(summary: Summary) -> str:
    """The summary of a training, in words."""
    metrics = summary.metrics
    scores = "".join(f", {name} {value:.2f}" for name, value in metrics.scores.items())
    return "\n".join(
        [
            f"Training is over: {summary.reason}, in {summary.seconds / 60:.1f} minutes.",
            f"The best model, of step {summary.best_step} of {summary.total_steps}, is in "
            f"{summary.folder}.",
            f"On the validation pairs it has an accuracy of {metrics.accuracy:.2%}{scores} (greedy "
            f"decoding), {metrics.token_accuracy:.2%} by token, and a loss of {metrics.loss:.4f}.",
            f"It attends to {metrics.attention_nonzeros:.2f} source positions and holds "
            f"{metrics.output_nonzeros:.2f} next tokens possible, on average.",
        ]
    )
