"""`fenchel train`: trains a model as a configuration file says, and goes on where it was left."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..seq2seq.training._callback import Summary

EXAMPLES = ("inflection", "translation", "summarization")


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a sequence-to-sequence model from a configuration file",
        description="Trains a sequence-to-sequence model as a configuration file says. Begin with "
        "one that ships, which explains every key: `fenchel train --example inflection > "
        "config.yaml`; then `fenchel train config.yaml`. The folder `training.folder` gets the "
        "best model (for predict, evaluate and explain), the last checkpoint, and the log as "
        "log.csv and for TensorBoard. Stopped at any moment and given again, the same command "
        "goes on from the last checkpoint. Several processes train one model together with "
        "`torchrun --nproc-per-node N -m fenchel train config.yaml`.",
        epilog=epilog,
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="the configuration file")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="a value instead of the file's, such as model.layers=1 or training.batch_size=64",
    )
    parser.add_argument(
        "--example",
        choices=EXAMPLES,
        help="print the commented configuration file of a task, and end",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print the summary, and what was left out, alone"
    )
    parser.add_argument(
        "--allow-changed-data",
        action="store_true",
        help="go on with a training though the pairs in its files are not those it began with",
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
    """How training ended, in words."""
    metrics = summary.metrics
    return "\n".join(
        [
            f"Training is over: {summary.reason}, in {summary.seconds / 60:.1f} minutes.",
            f"The best model, of step {summary.best_step} of {summary.total_steps}, is in "
            f"{summary.folder}.",
            f"On the validation pairs it has an accuracy of {metrics.accuracy:.2%} (greedy "
            f"decoding), {metrics.token_accuracy:.2%} by token, and a loss of {metrics.loss:.4f}.",
            f"It attends to {metrics.attention_nonzeros:.2f} source positions and holds "
            f"{metrics.output_nonzeros:.2f} next tokens possible, on average.",
        ]
    )
