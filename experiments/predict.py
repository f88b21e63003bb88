"""Outputs for the lines of a file, such as a covered test, as a file that is parallel to it.

    python -m experiments.predict MODEL --input covered-test.txt --output predictions.txt.gz

Several models form an ensemble. With `--with-input` a line is the input, a tab, and its output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fenchel.seq2seq import Seq2Seq, decode, load

from . import command, files


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="+", help="folders of models")
    parser.add_argument("--input", type=Path, required=True, help="plain or gzip")
    parser.add_argument("--output", type=Path, required=True, help="compressed if it ends in .gz")
    parser.add_argument("--with-input", action="store_true")
    parser.add_argument("--beam", type=command.count, default=5)
    parser.add_argument("--batch-size", type=command.count, default=256)
    parser.add_argument("--max-length", type=command.count, default=100)
    parser.add_argument(
        "--length-power",
        type=command.number,
        default=0.0,
        help="ranks by log-probability / length^POWER",
    )
    parser.set_defaults(run=_run)
    return command.run_subcommand(parser, argv)


def best_texts(models: Sequence[Seq2Seq], texts: Sequence[str], **search: float) -> list[str]:
    """The most probable output of each text; empty if there is none."""
    results = decode(models, texts, nbest=1, **search)  # type: ignore[arg-type]
    best = (result.hypotheses[0].tokens if result.hypotheses else [] for result in results)
    return [models[0].target.decode(tokens) for tokens in best]


def _run(arguments: argparse.Namespace) -> int:
    models = [load(folder, command.device()) for folder in arguments.model]
    texts = list(files.lines(arguments.input))
    outputs = best_texts(
        models,
        texts,
        beam=arguments.beam,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        length_power=arguments.length_power,
    )
    lines = [" ".join(output.split("\n")) for output in outputs]
    if arguments.with_input:
        lines = [f"{text}\t{line}" for text, line in zip(texts, lines, strict=True)]
    files.write_lines(arguments.output, lines)
    print(f"{len(lines)} predictions are in {arguments.output}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
