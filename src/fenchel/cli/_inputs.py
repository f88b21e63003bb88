"""The inputs of the commands: the columns of tables, and lines that are read as they arrive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

from .._choices import TABLE_FORMATS

if TYPE_CHECKING:
    from ..seq2seq import Seq2Seq
    from ..seq2seq.config._data import ColumnsConfig

STANDARD_INPUT = "-"
ROLES = ("source", "target", "features")

Parse = Callable[[str], "tuple[str, str] | None"]


@dataclass(frozen=True)
class Line:
    """A line of input.

    Args:
        number: from 1.
        source, target: its texts.
        error: what is wrong with it.
        unknown, unknown_target: the parts of its texts that the model does not know.
    """

    number: int
    source: str = ""
    target: str = ""
    error: str = ""
    unknown: tuple[str, ...] = ()
    unknown_target: tuple[str, ...] = ()


def column_choices(text: str) -> dict[str, int | str]:
    """The type of an option for columns: `source=1,target=2` with numbers or names."""
    found: dict[str, int | str] = {}
    for part in text.split(","):
        role, equals, column = (word.strip() for word in part.partition("="))
        if role not in ROLES or not equals or not column or role in found:
            raise argparse.ArgumentTypeError(
                "must be such as source=1,target=2,features=3, with numbers from 1 or with names, "
                f"got {text!r}."
            )
        found[role] = int(column) if column.isascii() and column.isdecimal() else column
    return found


def add_columns(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds the options for tables; `default` says what is read without them."""
    parser.add_argument(
        "--format",
        choices=TABLE_FORMATS,
        help=f"tsv: columns between tabs; json: an object on each line; default: {default}",
    )
    parser.add_argument(
        "--columns",
        type=column_choices,
        metavar="ROLE=COLUMN,…",
        help="the columns of a table, by number or by name, such as source=1,target=2,features=3; "
        "default: the model's",
    )
    parser.add_argument(
        "--header",
        action="store_true",
        default=None,
        help="the first line of a TSV file is a header, also if columns are given by number",
    )


def is_table_told(arguments: argparse.Namespace) -> bool:
    """Whether the options say that the input is a table."""
    return bool(arguments.format or arguments.columns or arguments.header)


def check_no_columns(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Exits with 2 if there are options for the columns of inflections, which are fixed."""
    if is_table_told(arguments):
        parser.error(
            "inflections have lines `lemma TAB form TAB tags`; leave out --format, --columns and "
            "--header."
        )


def check_language(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, is_inflection: bool
) -> None:
    """Exits with 2 if there is a language for other texts than inflections."""
    if arguments.language is not None and not is_inflection:
        parser.error("--language is for inflections; leave it out.")


def language_of_files(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, model: Seq2Seq
) -> str | None:
    """The language of all inflections: that of the option, or the model's only one; None if the
    names of the files say it. Exits with 2 if standard input, which has no name, should."""
    from ..seq2seq.data._inflection import only_language

    language = arguments.language or only_language(model.source)
    if language is None and STANDARD_INPUT in arguments.files:
        known = ", ".join(getattr(model.source, "languages", []))
        parser.error(f"add --language: standard input has no name that says it; one of {known}.")
    return language


def has_tables(config: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Whether files are tables: not for a model of parallel text, unless the options say so."""
    files = config.get("data", {}).get("train")
    is_parallel = isinstance(files, list) and bool(files) and isinstance(files[0], dict)
    return is_table_told(arguments) or not is_parallel


def columns_of(
    config: dict[str, Any], arguments: argparse.Namespace, path: str = ""
) -> ColumnsConfig:
    """The columns of a model's configuration, with those of the command line in their place.

    Args:
        config: the model's configuration.
        arguments: the options of `add_columns`.
        path: of the file to read. If it is JSON, the configuration's numbers of columns are not for
            it, and the default keys are in their place.
    Raises:
        ValueError: if they cannot be used.
    """
    from ..seq2seq.config._data import ColumnsConfig
    from ..seq2seq.config._loading import parse_columns
    from ..seq2seq.data._tables import is_json

    data = config.get("data", {})
    has_features = not data or data.get("task") == "inflection" or data.get("features") is not None
    if (arguments.columns or {}).get("features") is not None and not has_features:
        raise ValueError("--columns names features, and the model has none; leave them out.")
    known = {name: data[name] for name in ColumnsConfig.model_fields if data.get(name) is not None}
    if data.get("task") == "inflection":
        known = {"source": 1, "target": 2, "features": 3}
    known |= {"format": arguments.format} if arguments.format else {}
    if is_json(path, parse_columns({"format": known.get("format")})):
        known = {name: value for name, value in known.items() if not isinstance(value, int)}
    header = {} if arguments.header is None else {"header": arguments.header}
    return parse_columns({**known, **(arguments.columns or {}), **header})


def source_parser(config: dict[str, Any]) -> Parse:
    """Parses lines that are sources: of a model of tables, without other columns beside them."""
    data = config.get("data", {})
    is_checked = data.get("task") == "text" and isinstance((data.get("train") or [{}])[0], str)
    num_tabs = 0 if data.get("features") is None else 1

    def parse(text: str) -> tuple[str, str]:
        if is_checked and text.count("\t") > num_tabs:
            raise ValueError(
                "the line has other columns than an input; if the input is a table, add "
                "--format tsv"
            )
        return text, ""

    return parse


def stream_lines(raws: Iterator[bytes | None], parse: Parse) -> Iterator[Line | None]:
    """The lines of a stream; None where it is idle. A header has no line.

    Raises:
        ValueError: if the header lacks a column.
    """
    from ..seq2seq.data._lines import decode_line
    from ..seq2seq.data._tables import HeaderError

    number = 0
    for raw in raws:
        if raw is None:
            yield None
            continue
        number += 1
        try:
            text = decode_line(raw, number)
            pair = parse(text) if text else ("", "")
        except HeaderError as error:
            raise ValueError(f"line {number}: {error}.") from None
        except ValueError as error:
            yield Line(number, error=f"{str(error).rstrip('.')}.")
        else:
            if pair is not None:
                yield Line(number, *pair)


def file_lines(path: str, parse: Parse) -> Iterator[Line | None]:
    """The lines of a file, plain or gzip, or of standard input as they arrive, for "-"."""
    from ..seq2seq.data._lines import live_lines, read_lines
    from ..seq2seq.data._readers import DAMAGE, open_text

    if path == STANDARD_INPUT:
        yield from stream_lines(live_lines(standard_input()), parse)
        return
    with open_text(path) as file:
        try:
            yield from stream_lines(read_lines(file), parse)
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged: {error}.") from None


def standard_input() -> BufferedIOBase:
    """Standard input as bytes."""
    if sys.stdin is None:
        raise OSError("standard input and standard output must be open.")
    return sys.stdin.buffer  # type: ignore[return-value]


def blocks(
    lines: Iterator[Line | None], model: Seq2Seq, size: int, *, has_target: bool = False
) -> Iterator[list[Line]]:
    """The lines in blocks of up to `size`; a block ends when the input is idle.

    What is wrong with a line, and what the model does not know, is printed to standard error.
    """
    block: list[Line] = []
    for line in lines:
        if line is not None:
            checked = check(line, model, has_target)
            _report(checked)
            block.append(checked)
        if block and (line is None or len(block) == size):
            yield block
            block = []
    if block:
        yield block


def check(line: Line, model: Seq2Seq, has_target: bool) -> Line:
    """The line with what is wrong with it, if the vocabularies cannot encode it."""
    from ..seq2seq.data._copying import unknown_of_pair

    if line.error:
        return line
    try:
        if not model.source.encode(line.source):
            return replace(line, error="the line is empty.")
    except ValueError as error:
        return replace(line, error="the line is empty." if not line.source else str(error))
    if has_target and not model.target.encode(line.target):
        return replace(line, error="the target is empty.")
    if not has_target:
        return replace(line, unknown=tuple(model.source.unknown(line.source)))
    found = unknown_of_pair(model.source, model.target, (line.source, line.target))
    return replace(line, unknown=tuple(found[0]), unknown_target=tuple(found[1]))


def _report(line: Line) -> None:
    from ..seq2seq.explanations._explain import name_parts

    if line.error:
        print(f"line {line.number}: {line.error}", file=sys.stderr)
    for parts, where in ((line.unknown, ""), (line.unknown_target, " in the target")):
        if parts:
            said = f"the model does not know {name_parts(parts)}{where}."
            print(f"line {line.number}: {said}", file=sys.stderr)


def report_errors(command: str, count: int) -> int:
    """Says how many lines could not be read, and returns the exit code."""
    if count:
        lines = "1 line" if count == 1 else f"{count} lines"
        print(f"fenchel {command}: error: {lines} could not be read.", file=sys.stderr)
    return 1 if count else 0


def parallel_lines(paths: Sequence[str]) -> Iterator[Line | None]:
    """The lines of two files of parallel text."""
    from ..seq2seq.config._data import ParallelFiles
    from ..seq2seq.data._readers import LastMalformed, numbered_parallel

    source, target = ("/dev/stdin" if path == STANDARD_INPUT else path for path in paths)
    files, malformed = ParallelFiles(source=source, target=target), LastMalformed()
    for number, source, target in numbered_parallel(files, malformed):
        reason = malformed.take()
        yield Line(number, source, target, f"{reason}." if reason else "")
