"""`fenchel score`: the probability that a model gives to outputs in files."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._inputs import (
    Line,
    Parse,
    add_columns,
    blocks,
    check_language,
    check_no_columns,
    columns_of,
    file_lines,
    has_tables,
    language_of_files,
    parallel_lines,
    report_errors,
)
from ._models import add_device, add_ensemble, search_size, trained

if TYPE_CHECKING:
    from ..seq2seq import Score, Seq2Seq


def add(commands: Any, epilog: str) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "score",
        help="write the probability of given outputs, token by token on request",
        description="Reads sources and targets as evaluate does, and writes a line for each pair: "
        "the natural logarithm of the target's probability, and `possible` or `impossible`. An "
        "impossible target has probability zero exactly, its logarithm is -inf. With --tokens "
        "follow the tokens and the end, each with its probability given those before it, and "
        "`impossible` names the first that has none. The tokens are those that the model splits "
        "the target into: of subwords, the probability is that of this spelling alone. A line that "
        "cannot be read is reported on standard error, and its line in the output is empty; the "
        "exit code is then 1. A header has no line. "
        "Example: printf 'roue\\tʁ u\\n' | fenchel score MODEL - --tokens",
        epilog=epilog,
    )
    add_ensemble(parser)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a table, or sources and targets in two files if the model was trained on parallel "
        "text; plain or gzip; - is standard input, which is answered line by line",
    )
    parser.add_argument(
        "--probability",
        action="store_true",
        help="write the probability instead of its logarithm; it may round to 0 for a long target "
        "that is possible",
    )
    parser.add_argument("--tokens", action="store_true", help="add the probability of each token")
    parser.add_argument(
        "--json",
        action="store_true",
        help="write JSON lines: line, input, target, log_probability (null for -inf), probability, "
        "possible, and with --tokens tokens, probabilities and first_zero (the number of the first "
        "token that has probability zero, from 1, or null); or an error",
    )
    parser.add_argument(
        "--language",
        help="the language of inflections, if the model has several; default: the file's name",
    )
    add_columns(parser, "the model's, or the ending of the file's name")
    parser.add_argument(
        "--batch-size",
        type=search_size("batch_size"),
        metavar="N",
        help="the largest number of pairs at once; default: the model's `search.batch_size`",
    )
    add_device(parser)
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from ..seq2seq import score

    if isinstance(sys.stdout, io.TextIOWrapper):  # like the input, in any locale
        sys.stdout.reconfigure(encoding="utf-8")
    folders = (arguments.model, *arguments.ensemble)
    models, config, defaults = trained(folders, arguments.device)
    size = arguments.batch_size or defaults.batch_size
    num_errors = 0
    lines = _lines(parser, arguments, config, models[0])
    for block in blocks(lines, models[0], size, has_target=True):
        good = [(line.source, line.target) for line in block if not line.error]
        found = iter(score(models, good, batch_size=size))
        for line in block:
            result = None if line.error else next(found)
            num_errors += result is None
            write = _record if arguments.json else _row
            print(write(line, result, models[0], arguments))
        sys.stdout.flush()
    return report_errors("score", num_errors)


def _lines(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    config: dict[str, Any],
    model: Seq2Seq,
) -> Iterator[Line | None]:
    """The lines of all files."""
    check_language(parser, arguments, _is_inflection(model))
    is_table = has_tables(config, arguments)
    if not is_table and len(arguments.files) != 2:
        parser.error("this model takes two files, sources and targets; or a table, with --columns.")
    if not is_table:
        return parallel_lines(arguments.files)
    if len(arguments.files) != 1:
        parser.error("name one file; its lines and those of the output are the same.")
    (path,) = arguments.files
    return file_lines(path, _parse_lines_of(path, parser, arguments, config, model))


def _parse_lines_of(
    path: str,
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    config: dict[str, Any],
    model: Seq2Seq,
) -> Parse:
    """Parses the lines of a table, or of inflections."""
    from ..seq2seq.data._readers import inflection_parser, language_of
    from ..seq2seq.data._tables import Table, is_json

    if _is_inflection(model):
        check_no_columns(parser, arguments)
        language = language_of_files(parser, arguments, model)
        return inflection_parser(language or language_of(path))
    columns = columns_of(config, arguments, path)
    return Table(columns, json=is_json(path, columns)).parse


def _is_inflection(model: Seq2Seq) -> bool:
    """Whether the sources are inflections, also of a model that copies."""
    from ..seq2seq.data._inflection import Inflection

    return isinstance(getattr(model.source, "known", model.source), Inflection)


def _row(line: Line, result: Score | None, model: Seq2Seq, arguments: Any) -> str:
    if result is None:
        return ""
    value = result.probability if arguments.probability else result.log_probability
    columns = [f"{value:.6g}", "possible" if result.is_possible else "impossible"]
    if arguments.tokens:
        names = _names(result, model)
        if result.first_zero is not None:
            columns[1] += f" at token {result.first_zero + 1}, {names[result.first_zero]}"
        columns += [f"{n} {p:.6g}" for n, p in zip(names, result.probabilities, strict=True)]
    return "\t".join(columns)


def _names(result: Score, model: Seq2Seq) -> list[str]:
    """The names of the tokens and of the end, in visible characters."""
    from ..seq2seq.explanations._explain import END, visible

    return [*map(visible, model.target.tokens(result.tokens)), END]


def _record(line: Line, result: Score | None, model: Seq2Seq, arguments: Any) -> str:
    record: dict[str, Any] = {"line": line.number, "input": line.source, "target": line.target}
    if result is None:
        return json.dumps({**record, "error": line.error}, ensure_ascii=False)
    record |= {
        "log_probability": result.log_probability if result.is_possible else None,
        "probability": result.probability,
        "possible": result.is_possible,
    }
    if line.unknown or line.unknown_target:
        record["unknown"] = [*line.unknown, *line.unknown_target]
    if arguments.tokens:
        first = result.first_zero
        record |= {
            "tokens": _names(result, model),
            "probabilities": list(result.probabilities),
            "first_zero": None if first is None else first + 1,
        }
    return json.dumps(record, ensure_ascii=False)
