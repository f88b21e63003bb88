"""What the command lines of the experiments share."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import torch


def whole(text: str, least: int = 0) -> int:
    """An option's number of things."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, got {text!r}.")
    return int(text)


def count(text: str) -> int:
    """An option's number of things, at least one."""
    return whole(text, 1)


def number(text: str) -> float:
    """An option's number, which is finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}.")
    return value


def device() -> str:
    """The device to compute on: a GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs the command that the arguments name, `train` if they start with an option.

    Args:
        parser: each of its commands sets `command`, a function of its options.
        arguments: by default those of the process.
    Returns:
        0 if all went well; 1, with a message on standard error, if the data or options are wrong.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, "train")
    options = vars(parser.parse_args(given))
    threads = options.pop("threads", None)
    if threads:
        torch.set_num_threads(threads)
    try:
        options.pop("command")(**options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run_subcommand(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs the subcommand that the arguments name; its exit code.

    Args:
        parser: each of its subcommands sets `run`, a function of the namespace that returns a code.
        arguments: by default those of the process.
    """
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
