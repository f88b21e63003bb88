"""The command line: `python -m benchmarks CASE [CASE…]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from . import machine, results
from .cases import CASES
from .cases.options import Options
from .correctness import WrongAnswerError

BUSY = 0.05
"""The share of the cores that others may use before the times are in doubt."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Checks, then times, fenchel beside torch and the entmax package, interleaved "
        "in one run. A wrong answer is not timed.",
        epilog="Run it on a quiet machine. Results are appended to "
        "benchmarks/results/CASE-CPU.jsonl, and CASE.md holds the last table.",
    )
    parser.add_argument(
        "cases", metavar="CASE", nargs="*", help=f"one or more of {', '.join(CASES)}"
    )
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="numbers of threads to measure with (default: 1 2)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds, the smallest shapes, no slow rivals: only to see that all works; "
        "results are not kept unless --output is given",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="the folder for results (default: benchmarks/results)",
    )
    return parser


def _run(name: str, options: Options, folder: Path | None) -> None:
    case = CASES[name]
    head = {**machine.describe(), "others before": machine.others()}
    print(f"# {name}: {case.title}\n")
    rows = []
    for row in case.rows(options):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r{len(rows)} rows", end="", file=sys.stderr, flush=True)
    head["others after"] = machine.others()
    for fact, value in head.items():
        print(f"  {fact}: {value}")
    print(f"\n{results.table(rows)}\n\n{results.summary(rows)}\n")
    if max(head["others before"] or 0, head["others after"] or 0) > BUSY:
        print("Other processes were busy: measure again on a quiet machine.\n")
    if folder is not None:
        for path in results.save(name, case.title, rows, head, folder):
            print(f"written: {path}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases; 0 if all could be measured, 1 if an answer was wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        for name, case in CASES.items():
            print(f"{name:10} {case.title}")
        return 0
    if not options.cases:
        parser.error("name at least one CASE; --list shows them")
    for name in options.cases:
        if name not in CASES:
            parser.error(f"`CASE` must be one of {', '.join(CASES)}, got {name!r}")
    if min(options.threads) < 1:
        parser.error(f"`--threads` must be at least 1, got {min(options.threads)}")

    folder = options.output or (None if options.quick else results.FOLDER)
    torch.manual_seed(0)
    for name in options.cases:
        try:
            _run(name, Options(tuple(options.threads), options.quick), folder)
        except WrongAnswerError as error:
            print(f"{name}: {error} Nothing was timed.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
