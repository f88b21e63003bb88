"""`fenchel explain`: all outputs that a model considers for one input, as a page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .._atomic import check_writable, write_text
from .._format import percent
from ._models import add_ensemble, add_limits, positive, search_size, trained


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="show all outputs that a model considers for one input, as a page",
        description="Finds the outputs of nonzero probability, up to --limit, prints them with "
        "their certificates, and writes a page: the tree of hypotheses, the attention of each with "
        "exact zeros left blank, and, for a reference, the candidates at each of its positions. "
        "The page is one file that needs no network. A reference's probability is printed, too. "
        'Example: fenchel explain MODEL "draw V;V.PTCP;PST" --reference drawn --html out.html',
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument("text", metavar="TEXT", help='the input; for inflection "lemma tags"')
    parser.add_argument(
        "--features",
        metavar="TEXT",
        help="the features of the input, between semicolons or spaces, if the model has any",
    )
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the page to PATH")
    parser.add_argument("--reference", metavar="TEXT", help="an output whose probability is wanted")
    parser.add_argument(
        "--shown",
        type=positive,
        default=12,
        metavar="N",
        help="the largest number of outputs shown (default: 12)",
    )
    parser.add_argument(
        "--limit",
        type=search_size("limit"),
        default=1000,
        metavar="N",
        help="the largest number of outputs to search for (default: 1000)",
    )
    add_limits(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..seq2seq import Featured, Inflection, explain
    from ..seq2seq.data._copying import unknown_of_pair
    from ..seq2seq.explanations._explain import name_parts
    from ..seq2seq.explanations._page import reference_verdict, unknown_share, verdict, warning

    if arguments.html is not None:
        check_writable(arguments.html)
    folders = (arguments.model, *arguments.ensemble)
    models, _, defaults = trained(folders, arguments.device)
    text = arguments.text
    if arguments.features is not None:
        if models[0].source.kind not in (Featured.kind, Inflection.kind):
            raise ValueError("--features: the model has none; leave it out.")
        text = f"{text}\t{arguments.features}"
    found = explain(
        models,
        text,
        reference=arguments.reference,
        shown=arguments.shown,
        limit=arguments.limit,
        max_length=arguments.max_length or defaults.max_length,
    )
    for output, hypothesis in zip(found.outputs, found.result.hypotheses, strict=False):
        print(f"{percent(hypothesis.probability):>7}  {output}")
    if found.unknown:
        print(warning(found))
        print(f"note: the model does not know {unknown_share(found)}.", file=sys.stderr)
    print(verdict(found))
    if found.reference:
        pair = text, found.reference_text
        _, unknown = unknown_of_pair(models[0].source, models[0].target, pair)
        if unknown:
            said = f"the model does not know {name_parts(unknown)} in the reference"
            print(f"note: {said}.", file=sys.stderr)
        print(reference_verdict(found))
    if arguments.html is not None:
        write_text(arguments.html, found.html())
        print(f"The page is in {arguments.html}.")
    return 0
