"""Trained models for the commands that use them: their options, and how they are loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._choices import DEVICES, SEARCH_METHODS
from .._search_sizes import too_large

if TYPE_CHECKING:
    from ..seq2seq import Seq2Seq
    from ..seq2seq.config._schema import SearchConfig


class Trained(NamedTuple):
    """The models of an ensemble, and the configuration of the first one."""

    models: list[Seq2Seq]
    config: dict[str, Any]
    search: SearchConfig


def positive(text: str) -> int:
    """The type of an option for a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


def search_size(name: str) -> Callable[[str], int]:
    """The type of an option for this size of a search, which has an upper bound."""

    def positive_and_bounded(text: str) -> int:
        value = positive(text)
        if reason := too_large(name, value):
            raise argparse.ArgumentTypeError(reason)
        return value

    return positive_and_bounded


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Adds the model, and the other models of an ensemble."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="the folder of a trained model")
    parser.add_argument(
        "--ensemble",
        metavar="MODEL",
        type=Path,
        action="append",
        default=[],
        help="another model with the same vocabularies, whose probabilities are averaged with "
        "those of the first; may be repeated",
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a search in batches."""
    parser.add_argument(
        "--method",
        choices=SEARCH_METHODS,
        default="beam",
        help="greedy keeps the most probable token, exhaustive every hypothesis, up to 1000 of an "
        "input (default: beam)",
    )
    parser.add_argument(
        "--beam",
        type=search_size("beam"),
        metavar="N",
        help="live hypotheses kept for an input; default: the model's `search.beam`",
    )
    parser.add_argument(
        "--batch-size",
        type=search_size("batch_size"),
        metavar="N",
        help="the largest number of inputs decoded at once; default: the model's "
        "`search.batch_size`",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Adds the length limit and the device."""
    parser.add_argument(
        "--max-length",
        type=search_size("max_length"),
        metavar="N",
        help="the largest number of tokens of an output; default: the model's `search.max_length`",
    )
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds the device."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="auto takes a GPU if there is one (default: auto)",
    )


def trained(folders: Sequence[Path], device: str) -> Trained:
    """Loads the models of an ensemble, each folder once.

    Raises:
        FileNotFoundError, ValueError: if one is missing, damaged, or has another vocabulary.
    """
    from ..seq2seq.config._schema import SearchConfig
    from ..seq2seq.models._ensemble import Ensemble
    from ..seq2seq.models._folder import load_with_config, section
    from ..seq2seq.training._distributed import device_of

    torch_device = device_of(device)
    loaded = {folder: load_with_config(folder, torch_device) for folder in dict.fromkeys(folders)}
    models = [loaded[folder][0] for folder in folders]
    Ensemble(models)  # checks the vocabularies before any input is read
    config = loaded[folders[0]][1]
    return Trained(models, config, section(folders[0], config, "search", SearchConfig))
