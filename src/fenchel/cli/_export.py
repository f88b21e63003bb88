"""`fenchel export`: a model for other runtimes, and a script that decodes with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ._models import trained

FORMATS = ("onnx", "pt2", "all")


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a model as ONNX and torch.export programs that decode without fenchel",
        description="Writes a folder with the encoder and one step of decoding, as ONNX files and "
        "as programs of torch.export, for any batch size and length; the vocabularies as JSON; a "
        "README; and decode.py, which decodes with numpy and onnxruntime alone. Takes up to a few "
        "minutes, because a sparse mapping has many ONNX nodes. ONNX needs "
        "pip install 'fenchel[export]'. Example: fenchel export MODEL -o exported; then "
        "printf 'draw\\tV;PST\\n' | python exported/decode.py --nbest 3",
        epilog=epilog,
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="the folder of a trained model")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="created if it is missing; files in it are replaced, all at the end",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="all",
        help="onnx with decode.py, or pt2, the programs of torch.export (default: all)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..seq2seq import export
    from ..seq2seq.exporting._export import unknown_kinds

    (model,), _, defaults = trained([arguments.model], "cpu")
    formats = FORMATS[:2] if arguments.format == "all" else (arguments.format,)
    written = export(
        model,
        arguments.output,
        formats=formats,
        beam=defaults.beam,
        max_length=defaults.max_length,
    )
    if "onnx" in formats and (kinds := unknown_kinds(model)):
        print(
            f"note: there is no decode.py for vocabularies of {', '.join(kinds)}.", file=sys.stderr
        )
    for path in written:
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0
