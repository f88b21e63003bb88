"""`fenchel serve`: a model behind HTTP."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from ._decoding import number
from ._models import add_ensemble, add_limits, positive, search_size, trained

LOCAL = ("127.0.0.1", "::1", "localhost")


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="answer HTTP requests for predictions, scores and explanations",
        description="Answers HTTP requests until SIGTERM or Ctrl-C: POST /predict and /score with "
        "JSON, / and /explain in a browser, GET /health, and GET /metrics for Prometheus. "
        "Concurrent requests are computed together. Listens on this machine alone, unless --host "
        "says otherwise; there is no encryption and no login, so put a proxy before it that has "
        "them. Needs pip install 'fenchel[serve]'. Example: fenchel serve MODEL, then "
        "curl -H 'Content-Type: application/json' "
        '-d \'{"inputs": ["draw V;PST"], "nbest": 3}\' http://127.0.0.1:8000/predict',
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument("--host", default=LOCAL[0], help="the address (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="0 takes a free one, which is printed (default: 8000)",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name in the Host header of requests; may be repeated; default: any, or if --host "
        "is this machine alone, its local names",
    )
    parser.add_argument(
        "--batch-size",
        type=search_size("batch_size"),
        metavar="N",
        help="inputs computed at once; default: the model's `search.batch_size`",
    )
    parser.add_argument(
        "--wait-ms",
        type=number(1000, is_positive=False),
        default=5.0,
        metavar="MS",
        help="how long a request waits for others to share a batch with (default: 5)",
    )
    parser.add_argument(
        "--seconds",
        type=number(3600, is_positive=True),
        default=30.0,
        metavar="S",
        help="the time limit of a request; then its status is 504 (default: 30)",
    )
    for name, what, default in (
        ("body-bytes", "bytes of a request; then its status is 413", 1 << 20),
        ("inputs", "inputs of a request", 64),
        ("characters", "characters of an input", 2000),
        ("outputs", "values of `nbest`, `beam` and `samples`", 50),
        ("queue", "requests that wait for the model; more get the status 429", 1000),
        ("connections", "open connections; more get the status 503", 1000),
    ):
        parser.add_argument(
            f"--max-{name}",
            type=positive,
            default=default,
            metavar="N",
            help=f"the largest number of {what} (default: {default})",
        )
    add_limits(parser)
    parser.set_defaults(run=_run)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}.")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    from ..seq2seq.serving._app import Service
    from ..seq2seq.serving._limits import Limits
    from ..seq2seq.serving._server import bind, run

    models, _, defaults = trained((arguments.model, *arguments.ensemble), arguments.device)
    given = {
        field.name: getattr(arguments, f"max_{field.name}")
        for field in fields(Limits)
        if hasattr(arguments, f"max_{field.name}")
    }
    max_length = arguments.max_length or defaults.max_length
    limits = Limits(**{**given, "max_length": max_length, "seconds": arguments.seconds})
    is_local = arguments.host in LOCAL
    hosts = arguments.allowed_host or (LOCAL if is_local else None)
    service = Service(
        models,
        defaults,
        limits,
        batch_size=arguments.batch_size or defaults.batch_size,
        wait_seconds=arguments.wait_ms / 1000,
        hosts=hosts,
    )
    listener = bind(arguments.host, arguments.port)
    name = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    port = listener.getsockname()[1]
    print(f"Serving {arguments.model} at http://{name}:{port}/", file=sys.stderr, flush=True)
    if not is_local:
        print("note: whoever reaches this address may use the model.", file=sys.stderr)
    run(service.app, listener, limits.connections, limits.seconds)
    return 0
