"""The command line: `python -m benchmarks CASE [CASE…]`."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import fenchel

from . import _gpu, machine, results
from .cases import CASES, Case
from .cases.options import Options
from .correctness import WrongAnswerError

MAX_OTHER_LOAD = 0.05
"""The share of the cores that other processes may use before the times are in doubt."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Checks, then times, fenchel beside torch and other packages, interleaved in "
        "one run. A wrong answer is not timed.",
        epilog="Run it on a quiet machine. Results are appended to "
        "benchmarks/results/CASE-HARDWARE.jsonl, and CASE.md holds the last table. The cases gpu_* "
        "need an NVIDIA GPU; another package that is missing is reported as not installed.",
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
        help="numbers of threads to measure with (default: 1 2); not used by gpu_*",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds, the smallest shapes, no slow packages: only to see that all works; "
        "results are not kept unless --output is given",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="the folder for results (default: benchmarks/results)",
    )
    parser.add_argument(
        "--commit", metavar="ID", help="the commit measured, where there is no git to ask"
    )
    return parser


def _head(case: Case) -> dict[str, Any]:
    """What the case is measured on."""
    if case.gpu:
        return {**machine.describe(), **_gpu.describe()}
    kernels = fenchel.kernels()
    return {
        **machine.describe(),
        "native": kernels["native"],
        "binding": kernels["binding"].partition("; ")[0],
        "other load before": machine.other_load(),
    }


def _run(case: Case, options: Options, head: dict[str, Any], folder: Path | None) -> bool:
    """Measures a case, prints and saves it; False if it ended early or fenchel was wrong."""
    name = case.module
    hardware = head["gpu" if case.gpu else "cpu"]
    print(f"# {name}: {case.title}\n")
    rows = []
    try:
        for row in case.rows(options):
            rows.append(row)
            if case.gpu and folder is not None:  # a run that is cut off keeps what it has
                results.append(name, [row], head, hardware, folder)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} rows", end="", file=sys.stderr, flush=True)
    except Exception as error:
        if not (case.gpu and rows):
            raise
        # Another package's fault may leave the GPU unusable; what was measured before it is kept.
        traceback.print_exc()
        head["ended early by"] = _gpu.reason(error)
    if not case.gpu:
        head["other load after"] = machine.other_load()
    for fact, value in head.items():
        print(f"  {fact}: {value}")
    table = results.pivot(rows, case.pivot_by) if case.pivot_by else results.table(rows)
    print(f"\n{table}\n\n{results.summary(rows)}\n")
    if max(head.get("other load before") or 0, head.get("other load after") or 0) > MAX_OTHER_LOAD:
        print("Other processes were busy: measure again on a quiet machine.\n")
    if folder is not None:
        log = results.append(name, [] if case.gpu else rows, head, hardware, folder)
        page = results.write_page(name, case.title, rows, head, folder)
        print(f"written: {log}\nwritten: {page}")
    wrong = any(row["met"] is False and row.get("note") for row in rows)
    return not wrong and "ended early by" not in head


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases; 0 if all could be measured, 1 if an answer was wrong or a GPU is missing."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        for name, case in CASES.items():
            print(f"{name:15} {case.title}")
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
    status = 0
    for name in options.cases:
        try:
            head = _head(CASES[name])
            if options.commit:
                head["commit"] = options.commit
            asked = Options(tuple(options.threads), options.quick)
            right = _run(CASES[name], asked, head, folder)
        except _gpu.NoGpuError as error:
            print(f"{name}: {error}", file=sys.stderr)
            right = False
        except WrongAnswerError as error:
            print(f"{name}: {error} Nothing was timed.", file=sys.stderr)
            right = False
        status = status if right else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
