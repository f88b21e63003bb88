"""`fenchel explain`: a page of what a model considers for one input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ._models import add_ensemble, add_limits, positive, search_size, trained


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="show all that a model considers for one input, as a page",
        description="Finds every output that a model gives a nonzero probability, as far as they "
        "can be listed, prints them with their certificates, and writes a page: the tree of "
        "hypotheses, the attention of each with exact zeros left blank, and, for a reference, the "
        "candidates at each of its positions. The page is one file that needs no network. "
        'Example: fenchel explain MODEL "draw V;V.PTCP;PST" --reference drawn --html out.html',
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument("text", metavar="TEXT", help='the input; for inflection "lemma tags"')
    parser.add_argument("--html", type=Path, metavar="PATH", help="where the page goes")
    parser.add_argument("--reference", metavar="TEXT", help="an output to decode by force")
    parser.add_argument(
        "--shown", type=positive, default=12, metavar="N", help="the most outputs shown (12)"
    )
    parser.add_argument(
        "--limit",
        type=search_size("limit"),
        default=1000,
        metavar="N",
        help="the most to search for (1000)",
    )
    add_limits(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..seq2seq import explain
    from ..seq2seq._files import writable, write_text
    from ..seq2seq.explanations._page import percent, verdict, warning

    if arguments.html is not None:
        writable(arguments.html)
    folders = (arguments.model, *arguments.ensemble)
    models, _, plan = trained(folders, arguments.device)
    found = explain(
        models,
        arguments.text,
        reference=arguments.reference,
        shown=arguments.shown,
        limit=arguments.limit,
        max_length=arguments.max_length or plan.max_length,
    )
    for text, hypothesis in zip(found.outputs, found.result.hypotheses, strict=False):
        print(f"{percent(hypothesis.probability):>7}  {text}")
    if found.unknown:
        print(warning(found))
        share = f"{len(found.unknown)} of the {len(found.source)} tokens of the input"
        print(f"note: the model has not met {share}.", file=sys.stderr)
    print(verdict(found))
    if arguments.html is not None:
        write_text(arguments.html, found.html())
        print(f"The page is in {arguments.html}.")
    return 0
