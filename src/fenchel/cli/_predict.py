"""`fenchel predict`: the outputs for the lines of standard input, in their order."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ._decoding import add_constraint, add_sampling, check_method, constraint_of
from ._inputs import (
    STANDARD_INPUT,
    Line,
    Parse,
    add_columns,
    blocks,
    columns_of,
    file_lines,
    is_table_told,
    report_errors,
    source_parser,
)
from ._models import add_limits, add_search, search_size, trained

if TYPE_CHECKING:
    from ..seq2seq import Hypothesis, Result, Seq2Seq
    from ..seq2seq.config._schema import SearchConfig

    Found: TypeAlias = tuple[list[Hypothesis], Result | None]


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "predict",
        help="read inputs from standard input and write outputs to standard output",
        description="Reads inputs from standard input, one per line (for inflection `lemma TAB "
        "tags`, or `lemma TAB tags TAB language` if the model has several languages), and writes "
        "the most probable output of each, in the same order. It answers as soon as no more lines "
        "are waiting, so a program may write a line and wait for its answer. With --certificate or "
        "--nbest, the columns, separated by tabs, are the number of the input (--nbest), the "
        "output, its probability, and the certificate (--certificate): complete, all outputs of "
        "nonzero probability were found, written or not; exact, no output is more probable than "
        "the first; or none. --sample N draws outputs from the model instead of searching. With "
        "--prefix, --allow, --forbid and --no-unknown, only some outputs are allowed, and the "
        "certificate is about these. Outputs that --max-length cut are counted on standard error. "
        "With --json, each line is an object, which says it of each output. A line that cannot be "
        "read is reported on standard error, and its output is empty; the exit code is then 1. "
        "With --format or --columns standard input is a table, such as a test file: its targets "
        "are ignored, and a header has no output. Of JSON, the output is JSON. "
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
        "--nbest",
        type=search_size("nbest"),
        metavar="N",
        help="the largest number of outputs of an input; at most --beam, if that is given, and "
        "otherwise the beam is at least as wide",
    )
    parser.add_argument("--certificate", action="store_true", help="write what the search proved")
    parser.add_argument(
        "--json",
        action="store_true",
        help="write JSON lines: line, input, unknown (its parts that the model does not know), and "
        "outputs (text, probability, finished, and tokenizations if several spell the text) or an "
        "error",
    )
    parser.add_argument(
        "--attention",
        action="store_true",
        help="add the tokens of the source, and the tokens and the attention of each output: for "
        "every token and the end, and for every head, a weight for each source token; needs --json",
    )
    add_columns(parser, "a line is an input")
    add_search(parser)
    add_limits(parser)
    add_sampling(parser)
    add_constraint(parser)
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    arguments.json |= arguments.format == "json"
    if arguments.attention and not arguments.json:
        parser.error("--attention needs --json.")
    for name in ("nbest", "method", "beam", "certificate", "attention", "length_power"):
        if arguments.sample and getattr(arguments, name) != parser.get_default(name):
            parser.error(f"--sample does not search: leave out --{name.replace('_', '-')}.")
    for name in ("temperature", "seed"):
        if not arguments.sample and getattr(arguments, name) is not None:
            parser.error(f"--{name} needs --sample.")
    beam, nbest = arguments.beam, arguments.nbest
    if beam and nbest and nbest > beam:
        parser.error(f"--nbest must be at most --beam, {beam}, got {nbest}; raise --beam.")
    check_method(parser, arguments)
    if sys.stdin is None or sys.stdout is None:
        raise OSError("standard input and standard output must be open.")
    if isinstance(sys.stdout, io.TextIOWrapper):  # like the input, in any locale
        sys.stdout.reconfigure(encoding="utf-8")
    models, config, defaults = trained(arguments.models, arguments.device)
    size = arguments.batch_size or defaults.batch_size
    arguments.max_length = arguments.max_length or defaults.max_length
    find = _finder(models, arguments, defaults, size)
    is_table = is_table_told(arguments)
    parse = _table_parser(arguments, config) if is_table else source_parser(config)
    num_errors = num_cut = 0
    if sys.stdin.isatty():
        print("Type inputs, one per line; Ctrl-D on an empty line ends.", file=sys.stderr)
    for block in blocks(file_lines(STANDARD_INPUT, parse), models[0], size):
        rest = iter(find([line.source for line in block if not line.error]))
        for line in block:
            found, result = ([], None) if line.error else next(rest)
            num_errors += bool(line.error)
            if not line.error and not found:
                print(f"line {line.number}: no allowed output was found.", file=sys.stderr)
            num_cut += sum(not each.finished for each in found)
            _write(line, found, result, models[0], arguments)
        sys.stdout.flush()
    if num_cut and not arguments.json:  # JSON says it of each output
        were = "output was" if num_cut == 1 else "outputs were"
        tokens = "1 token" if arguments.max_length == 1 else f"{arguments.max_length} tokens"
        print(
            f"note: {num_cut} {were} cut after {tokens}, before the end; raise --max-length.",
            file=sys.stderr,
        )
    return report_errors("predict", num_errors)


def _finder(
    models: list[Seq2Seq], arguments: Any, defaults: SearchConfig, size: int
) -> Callable[[list[str]], list[Found]]:
    """The function that finds the outputs of texts: by a search, or by sampling."""
    from ..seq2seq import sample
    from ..seq2seq.decoding._decode import decode

    options: dict[str, Any] = {
        "batch_size": size,
        "max_length": arguments.max_length,
        "constraints": constraint_of(arguments, models[0]),
    }
    if arguments.sample:
        options |= {
            "samples": arguments.sample,
            "temperature": arguments.temperature or 1.0,
            "seed": arguments.seed or 0,
        }
        return lambda texts: [(found, None) for found in sample(models, texts, **options)]
    width = max(arguments.beam or defaults.beam, arguments.nbest or 1)
    options |= {
        "method": arguments.method,
        "beam": width,
        "nbest": width if arguments.method == "beam" else None,
        "attention": arguments.attention,
        "length_power": arguments.length_power,
    }
    shown = arguments.nbest or 1
    return lambda texts: [
        (result.hypotheses[:shown], result) for result in decode(models, texts, **options)
    ]


def _table_parser(arguments: argparse.Namespace, config: dict[str, Any]) -> Parse:
    """Parses the lines of a table, whose targets are ignored; of JSON, the output is JSON too."""
    from ..seq2seq.data._tables import Table

    columns = columns_of(config, arguments)
    arguments.json |= columns.format == "json"
    return Table(columns, json=columns.format == "json", has_target=False).parse


def _write(
    line: Line, found: list[Hypothesis], result: Result | None, model: Seq2Seq, arguments: Any
) -> None:
    if arguments.json:
        print(json.dumps(_record(line, found, result, model, arguments), ensure_ascii=False))
        return
    is_list = bool(arguments.nbest or arguments.sample)
    rows = [[model.target.decode(each.tokens), f"{each.probability:.6g}"] for each in found]
    for row in rows or [["", ""]]:
        columns = [str(line.number)] if is_list else []
        columns += row if is_list or arguments.certificate else row[:1]
        if arguments.certificate:
            columns.append(result.certificate if result else "none")
        print("\t".join(columns))


def _record(
    line: Line, found: list[Hypothesis], result: Result | None, model: Seq2Seq, arguments: Any
) -> dict[str, Any]:
    from ..seq2seq.decoding._records import certificate_record, input_record, output_records

    if line.error:
        return {"line": line.number, "input": line.source, "error": line.error}
    record = {"line": line.number, **input_record(model, line.source)}
    if arguments.attention:
        record["source"] = model.source.tokens(model.source.encode(line.source))
    record["outputs"] = output_records(
        model, found, attention=arguments.attention, length_power=arguments.length_power
    )
    if arguments.certificate and result is not None:
        record |= certificate_record(result)
    return record
