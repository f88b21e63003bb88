"""`fenchel predict`: outputs for the lines of standard input, in their order."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ._arrivals import arrivals
from ._models import add_limits, add_search, search_size, trained

if TYPE_CHECKING:
    from ..seq2seq import Hypothesis, Result, Seq2Seq

LONGEST = 100_000
"""Bytes of a line beyond which it is not read."""


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="read inputs from standard input and write outputs to standard output",
        description="Reads inputs from standard input, one a line (for inflection `lemma TAB "
        "tags`, and after them `TAB language` where the model knows several), and writes the most "
        "probable output of each, in their order, once no more lines are at hand, so that a "
        "program may write one and wait for its answer. With --certificate "
        "or --nbest, lines have columns between tabs: the number of the input (--nbest), the "
        "output, its probability, and the certificate (--certificate): complete, all outputs of "
        "nonzero probability were found, written or not; exact, no output is more probable than "
        "the first; or none. With --json, one object a line. A line that cannot be read is "
        "reported on standard error, has an empty output, and makes the exit code 1 once all "
        "others are done. "
        "Example: printf 'draw\\tV;PST\\n' | fenchel predict MODEL --nbest 3 --certificate",
        epilog=epilog,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        type=Path,
        nargs="+",
        help="the folder of a trained model; several make an ensemble, which averages their "
        "probabilities",
    )
    parser.add_argument(
        "--nbest", type=search_size("nbest"), metavar="N", help="the most outputs of an input"
    )
    parser.add_argument("--certificate", action="store_true", help="say what the search proved")
    parser.add_argument(
        "--json",
        action="store_true",
        help="write JSON lines: line, input, unknown (what of it the model has not met), and "
        "outputs (text, probability, finished, and tokenizations where several spell the text) or "
        "an error",
    )
    parser.add_argument(
        "--attention",
        action="store_true",
        help="add the source's tokens, and for each output its tokens and its attention: of every "
        "token and the end, of every head, a weight for each source token; needs --json",
    )
    add_search(parser)
    add_limits(parser)
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


@dataclass(frozen=True)
class Line:
    """An input: its number, its text, what is wrong with it, and what the model has not met."""

    number: int
    text: str
    error: str = ""
    unknown: tuple[str, ...] = ()


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from ..seq2seq.decoding._evaluation import decode

    if arguments.attention and not arguments.json:
        parser.error("--attention needs --json.")
    if sys.stdin is None or sys.stdout is None:
        raise OSError("standard input and standard output must be open.")
    if isinstance(sys.stdout, io.TextIOWrapper):  # as the input is, whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8")
    models, _, plan = trained(arguments.models, arguments.device)
    size = arguments.batch_size or plan.batch_size
    beam = arguments.beam or plan.beam
    width = max(beam, arguments.nbest or 1)
    bad = 0
    if sys.stdin.isatty():
        print("Type inputs, one a line; Ctrl-D on an empty line ends.", file=sys.stderr)
    stream = cast(io.BufferedIOBase, sys.stdin.buffer)
    for block in _blocks(stream, models[0], size):
        results = decode(
            models,
            [line.text for line in block if not line.error],
            batch_size=size,
            method=arguments.method,
            beam=width,
            nbest=width if arguments.method == "beam" else None,
            max_length=arguments.max_length or plan.max_length,
            attention=arguments.attention,
        )
        rest = iter(results)
        for line in block:
            result = None if line.error else next(rest)
            bad += result is None
            _write(line, result, models[0], arguments)
        sys.stdout.flush()
    if bad:
        print(f"fenchel predict: error: {bad} lines could not be read.", file=sys.stderr)
    return 1 if bad else 0


def _blocks(stream: io.BufferedIOBase, model: Seq2Seq, size: int) -> Iterator[list[Line]]:
    """The lines that have arrived, so many at most, checked; what is wrong with one is said."""
    from ..seq2seq.explanations._explain import listed

    block: list[Line] = []
    for line in _lines(stream):
        if line is not None:
            checked = line if line.error else _checked(line, model)
            if checked.error:
                print(f"line {checked.number}: {checked.error}", file=sys.stderr)
            if checked.unknown:
                parts = f"the model has not met {listed(checked.unknown)}."
                print(f"line {checked.number}: {parts}", file=sys.stderr)
            block.append(checked)
        if block and (line is None or len(block) == size):
            yield block
            block = []
    if block:
        yield block


def _lines(stream: io.BufferedIOBase) -> Iterator[Line | None]:
    """The lines of a stream, and None whenever it is idle."""
    number = 0
    for data in arrivals(stream, LONGEST):
        if data is None:
            yield None
            continue
        number += 1
        if len(data) > LONGEST:
            yield Line(number, "", f"longer than {LONGEST} bytes.")
            continue
        try:
            coding = "utf-8-sig" if number == 1 else "utf-8"
            yield Line(number, data.decode(coding).rstrip("\r"))
        except UnicodeDecodeError as error:
            yield Line(number, "", f"not UTF-8: {error.reason} at byte {error.start}.")


def _checked(line: Line, model: Seq2Seq) -> Line:
    try:
        empty = not model.source.encode(line.text)
    except ValueError as error:
        return Line(line.number, line.text, str(error))
    if empty:
        return Line(line.number, line.text, "the line is empty.")
    return Line(line.number, line.text, unknown=tuple(model.source.unknown(line.text)))


def _write(line: Line, result: Result | None, model: Seq2Seq, arguments: Any) -> None:
    found = result.hypotheses[: arguments.nbest or 1] if result else []
    if arguments.json:
        print(json.dumps(_record(line, result, found, model, arguments), ensure_ascii=False))
        return
    rows = [[model.target.decode(each.tokens), f"{each.probability:.6g}"] for each in found]
    rows = rows or [["", ""]]
    for row in rows:
        columns = [str(line.number)] if arguments.nbest else []
        columns += row if arguments.nbest or arguments.certificate else row[:1]
        columns += [_certificate(result)] if arguments.certificate else []
        print("\t".join(columns))


def _certificate(result: Result | None) -> str:
    if result is None or not result.exact:
        return "none"
    return "complete" if result.complete else "exact"


def _record(
    line: Line, result: Result | None, found: list[Hypothesis], model: Seq2Seq, arguments: Any
) -> dict[str, Any]:
    record: dict[str, Any] = {"line": line.number, "input": line.text}
    if result is None:
        return {**record, "error": line.error}
    if line.unknown:
        record["unknown"] = list(line.unknown)
    if arguments.attention:
        record["source"] = model.source.tokens(model.source.encode(line.text))
    record["outputs"] = [_output(each, model, arguments.attention) for each in found]
    if arguments.certificate:
        record |= {
            "exact": result.exact,
            "complete": result.complete,
            "hypotheses": len(result.hypotheses),
            "mass": result.mass,
            "bound": result.bound,
            "limited": result.limited,
        }
    return record


def _output(hypothesis: Hypothesis, model: Seq2Seq, attention: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": model.target.decode(hypothesis.tokens),
        "probability": hypothesis.probability,
        "finished": hypothesis.finished,
    }
    if attention and hypothesis.attention is not None:
        record["tokens"] = model.target.tokens(hypothesis.tokens)
        record["attention"] = hypothesis.attention.tolist()
    if hypothesis.others:
        record["tokenizations"] = [
            {"tokens": model.target.tokens(each.tokens), "probability": prod(each.probabilities)}
            for each in (hypothesis, *hypothesis.others)
        ]
    return record
