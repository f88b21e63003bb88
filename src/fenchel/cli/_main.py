"""Reads the command line and runs the command it names."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

import torch

from .. import __version__
from .._interrupts import STOPPED
from . import (
    _demo,
    _doctor,
    _evaluate,
    _explain,
    _export,
    _predict,
    _score,
    _serve,
    _train,
)
from ._parser import Parser

EXIT_CODES = "exit codes: 0 success, 1 failure (the reason is on stderr), 2 wrong usage, 130 Ctrl-C"
MEMORY_REMEDIES = {
    "train": " Lower training.batch_size, or set training.cuda_graphs=false.",
    "predict": " Lower --batch-size.",
    "evaluate": " Lower --batch-size.",
    "score": " Lower --batch-size.",
}
"""What to do if a command runs out of memory."""
CPU_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Part of PyTorch's message when the CPU runs out of memory."""
BROKEN_PIPE = "the reader of the output closed it before everything was written."


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fenchel",
        description="Sparse and structured alternatives to softmax for PyTorch. Begin with "
        "`fenchel demo`; `fenchel COMMAND --help` describes each command.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"fenchel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    doctor = commands.add_parser(
        "doctor",
        help="report versions, the native library, threads, Triton and the GPU",
        description="Reports what fenchel runs on, what is missing, and what to do about it. "
        "Exits with 0 if the package is usable, also without its fast kernels.",
        epilog=EXIT_CODES,
    )
    doctor.set_defaults(run=lambda arguments: _doctor.run())
    _demo.add(commands, EXIT_CODES)
    _train.add(commands, EXIT_CODES)
    _predict.add(commands, EXIT_CODES)
    _evaluate.add(commands, EXIT_CODES)
    _explain.add(commands, EXIT_CODES)
    _score.add(commands, EXIT_CODES)
    _serve.add(commands, EXIT_CODES)
    _export.add(commands, EXIT_CODES)
    return parser


def _reason(error: Exception) -> str:
    """What an error says; of the operating system's errors the files and the text, no number."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([" -> ".join(files), error.strerror] if files else [error.strerror])


def _remedy(command: str, error: Exception) -> str:
    """What to do about an error: lower a size, install a missing package, or nothing."""
    if isinstance(error, torch.cuda.OutOfMemoryError) or CPU_OUT_OF_MEMORY in str(error):
        return MEMORY_REMEDIES.get(command, "")
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    extras = {"seq2seq": _doctor.SEQ2SEQ, "serve": _doctor.SERVE, "export": _doctor.EXPORT}
    for extra, modules in extras.items():
        if name is not None and name.split(".")[0] in modules:
            return f"; install it with pip install 'fenchel[{extra}]'"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; wrong usage exits with 2.

    Args:
        argv: the words after `fenchel`; by default those of the process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal lacks are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # while a full disk can still be reported
        return code
    except KeyboardInterrupt:
        print(f"fenchel {arguments.command}: stopped", file=sys.stderr)
        return STOPPED
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        _drop_output()
        command = arguments.command
        reason = f"{_reason(error)}{_remedy(command, error)}"
        with contextlib.suppress(BrokenPipeError):  # standard error may be the same pipe
            print(f"fenchel {command}: error: {reason}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Drops output that cannot be written; otherwise Python tries again at exit, and fails."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
