"""Options of decoding beyond the search: samples, constraints and length normalization."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._models import search_size

if TYPE_CHECKING:
    from ..seq2seq import Constraint, Seq2Seq


def number(maximum: float, is_positive: bool) -> Callable[[str], float]:
    """The type of an option for a positive number, or zero too, up to `maximum`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= maximum or (is_positive and not value):
            bounds = f"{'above' if is_positive else 'at least'} 0 and at most {maximum:g}"
            raise argparse.ArgumentTypeError(f"must be a number {bounds}, got {text!r}.")
        return value

    return parse


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Adds samples in place of a search."""
    parser.add_argument(
        "--sample",
        type=search_size("samples"),
        metavar="N",
        help="draw N outputs of each input from the model's distribution, and write them with the "
        "number of the input and the probability; an output of probability zero is never drawn",
    )
    parser.add_argument(
        "--temperature",
        "--gamma",
        type=number(1e6, is_positive=True),
        metavar="T",
        help="of samples: divides the scores before the output mapping, as its γ does (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="of samples: with the same seed an input has the same samples, in any batch and on "
        "any line (default: 0)",
    )


def add_constraint(parser: argparse.ArgumentParser) -> None:
    """Adds which outputs are allowed, and length normalization."""
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="every output begins with this text"
    )
    parser.add_argument(
        "--allow", metavar="TEXT", help="outputs have only tokens of this text, such as letters"
    )
    parser.add_argument("--forbid", metavar="TEXT", help="outputs have no token of this text")
    parser.add_argument(
        "--no-unknown",
        dest="allow_unknown",
        action="store_false",
        help="outputs do not have the unknown token, which is written as �, or ⁇ by a model of "
        "subwords",
    )
    add_length_power(parser)


def add_length_power(parser: argparse.ArgumentParser) -> None:
    """Adds length normalization."""
    parser.add_argument(
        "--length-power",
        type=number(10, is_positive=False),
        default=0.0,
        metavar="P",
        help="rank outputs by log(probability) / length^P, for softmax models, which favour short "
        "outputs; exact is then about this score (default: 0, by probability)",
    )


def check_method(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends the command with an error if its method does not take an option."""
    if arguments.beam and arguments.method != "beam":
        parser.error(f"--beam needs the method beam, got {arguments.method}.")
    if arguments.length_power and arguments.method == "greedy":
        parser.error("--length-power needs the method beam or exhaustive.")


def constraint_of(arguments: Any, model: Seq2Seq) -> Constraint:
    """The constraint of the command line, checked before any input is read."""
    import torch

    from ..seq2seq import Constraint
    from ..seq2seq.decoding._restriction import Restriction

    constraint = Constraint(
        arguments.prefix, arguments.allow, arguments.forbid or "", arguments.allow_unknown
    )
    Restriction([constraint], model.target, torch.device("cpu"))
    return constraint
