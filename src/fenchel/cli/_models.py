"""What the commands that use trained models share: their options, and the models themselves."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _checks

if TYPE_CHECKING:
    from ..seq2seq import Seq2Seq
    from ..seq2seq.config._schema import SearchConfig


class Trained(NamedTuple):
    """Models that decode as one, the first one's configuration, and how it plans to search."""

    models: list[Seq2Seq]
    config: dict[str, Any]
    plan: SearchConfig


def positive(text: str) -> int:
    """A positive whole number of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}.")
    return int(text)


def search_size(name: str) -> Callable[[str], int]:
    """The type of an option for this size of a search."""

    def positive_and_bounded(text: str) -> int:
        value = positive(text)
        if reason := _checks.too_large(name, value):
            raise argparse.ArgumentTypeError(reason)
        return value

    return positive_and_bounded


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Adds the model, and others to average it with."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="the folder of a trained model")
    parser.add_argument(
        "--ensemble",
        metavar="MODEL",
        type=Path,
        action="append",
        default=[],
        help="another model, with the same vocabularies, whose probabilities are averaged with "
        "those of the first; may be given again",
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a search in batches."""
    parser.add_argument(
        "--method",
        choices=("beam", "greedy", "exhaustive"),
        default="beam",
        help="greedy follows the most probable token, exhaustive everything, up to 1000 at a time "
        "(default: beam)",
    )
    parser.add_argument(
        "--beam",
        type=search_size("beam"),
        metavar="N",
        help="hypotheses kept at a time; default: the model's `search.beam`",
    )
    parser.add_argument(
        "--batch-size",
        type=search_size("batch_size"),
        metavar="N",
        help="the most inputs decoded at once",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Adds the length limit and the device."""
    parser.add_argument(
        "--max-length",
        type=search_size("max_length"),
        metavar="N",
        help="the most tokens of an output; default: the model's `search.max_length`",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto is a GPU where there is one",
    )


def trained(folders: Sequence[Path], device: str) -> Trained:
    """Loads models that must fit together.

    Raises:
        FileNotFoundError, ValueError: if one is missing, damaged, or has another vocabulary.
    """
    from ..seq2seq.config._schema import SearchConfig
    from ..seq2seq.models._ensemble import Ensemble
    from ..seq2seq.models._folder import load, read_config, section
    from ..seq2seq.training._distributed import device_of

    place = device_of(device)
    models = [load(folder, place) for folder in folders]
    Ensemble(models)  # which checks the vocabularies before any input is read
    config = read_config(folders[0])
    return Trained(models, config, section(folders[0], config, "search", SearchConfig))
