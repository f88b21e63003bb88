"""Tables of pairs: lines of columns between tabs, or of JSON objects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..config._data import ColumnsConfig

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
DEFAULTS: dict[str, dict[str, int | str | None]] = {
    "tsv": {"source": 1, "target": 2, "features": None},
    "json": {"source": "source", "target": "target", "features": None},
}
"""The columns of each format, where a configuration names none."""
KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    str: "a text",
    type(None): "null",
}
IS = {"source": "the source is", "target": "the target is", "features": "the features are"}
"""How a message about a column begins."""
MAX_NAMED = 12
"""How many columns an error message names."""


class HeaderError(ValueError):
    """A table whose header does not fit the columns, so that none of its lines can be read."""


def is_json(path: str, columns: ColumnsConfig) -> bool:
    """Whether a file is one of JSON lines: as the columns say, or else by the end of its name."""
    if columns.format is not None:
        return columns.format == "json"
    return Path(path.removesuffix(".gz")).suffix.lower() in JSON_ENDINGS


def split_features(text: str) -> list[str]:
    """The features in a column, between semicolons or spaces.

    >>> split_features("N;ACC; PL")
    ['N', 'ACC', 'PL']
    """
    return [feature for feature in re.split(r"[;\s]", text) if feature]


class Table:
    """The lines of one table, as pairs.

    A source with features is `text TAB feature;feature;…`. Text is not changed: not stripped, not
    normalized, and quotation marks are characters.

    Args:
        columns: where the table has its sources and targets.
        json: whether a line is a JSON object; otherwise it has columns between tabs.
        has_target: whether the targets are read; without them they are empty.
    Raises:
        HeaderError: if the columns of JSON are numbers.

    >>> Table(ColumnsConfig(source=2, target=1)).parse("ʁ u\\troue")
    ('roue', 'ʁ u')
    >>> Table(ColumnsConfig(), json=True).parse('{"source": "roue", "target": "ʁ u"}')
    ('roue', 'ʁ u')
    """

    def __init__(
        self, columns: ColumnsConfig, *, json: bool = False, has_target: bool = True
    ) -> None:
        defaults = DEFAULTS["json" if json else "tsv"]
        chosen = {role: getattr(columns, role) or default for role, default in defaults.items()}
        self._columns = {
            role: column
            for role, column in chosen.items()
            if column is not None and (has_target or role != "target")
        }
        self._is_json = json
        names = [column for column in self._columns.values() if isinstance(column, str)]
        self._wants_header = not json and (
            bool(names) if columns.header is None else columns.header
        )
        for role, column in self._columns.items():
            if json and isinstance(column, int):
                raise HeaderError(
                    f"JSON has keys and no column {column}; give the key of the {role} in its place"
                )

    def parse(self, line: str) -> tuple[str, str] | None:
        """The source and the target of a line; None for the header.

        Raises:
            HeaderError: if the header lacks a column.
            ValueError: with what is wrong with the line.
        """
        if self._wants_header:
            self._read_header(line.split("\t"))
            self._wants_header = False
            return None
        values = self._values(line)
        source = _text("source", values["source"])
        if "features" in values:
            source = f"{source}\t{';'.join(_features(values['features']))}"
        return source, _text("target", values["target"]) if "target" in values else ""

    def _read_header(self, header: list[str]) -> None:
        """Replaces the names of columns by their numbers."""
        for role, column in self._columns.items():
            if isinstance(column, int):
                continue
            if header.count(column) != 1:
                wrong = f"no column {column!r}" if column not in header else f"two of {column!r}"
                raise HeaderError(
                    f"the header has {wrong} for the {role}; its columns are {_listed(header)}"
                )
            self._columns[role] = header.index(column) + 1

    def _values(self, line: str) -> dict[str, Any]:
        """The values of the columns by what they hold."""
        if self._is_json:
            record = _record(line)
            for column in self._columns.values():
                if column not in record:
                    raise ValueError(f"no key {column!r}; the keys are {_listed(list(record))}")
            return {role: record[str(column)] for role, column in self._columns.items()}
        cells = line.split("\t")
        for role, column in self._columns.items():
            if int(column) > len(cells):
                columns = f"{len(cells)} columns" if len(cells) > 1 else "1 column, without a tab"
                raise ValueError(f"{IS[role]} column {column}, and the line has {columns}")
        return {role: cells[int(column) - 1] for role, column in self._columns.items()}


def _record(line: str) -> dict[str, Any]:
    """The object of a line of JSON."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not a JSON object on one line: {error.msg} at character {error.pos + 1}"
        ) from None
    except (RecursionError, ValueError):  # too deep, or a number with too many digits
        raise ValueError("not JSON that can be read: it nests too deep, or is too long") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object on one line, but {KINDS[type(record)]}")
    return record


def _text(role: str, value: Any) -> str:
    """The text of a cell or of a JSON value."""
    if value is None:
        raise ValueError(f"{IS[role]} null")
    if not isinstance(value, str):
        raise ValueError(f"{IS[role]} {KINDS[type(value)]}, and must be a text in quotes")
    if not value.strip():
        raise ValueError(f"{IS[role]} empty")
    if found := re.search("[\t\n\r\0]", value):
        name = {"\t": "a tab", "\0": "a NUL"}.get(found[0], "a line break")
        raise ValueError(f"there is {name} in the {role}, which an output of one line cannot hold")
    if re.search("[\ud800-\udfff]", value):
        raise ValueError(f"there is half of a surrogate pair in the {role}, and no character")
    return value


def _features(value: Any) -> list[str]:
    """The features in a cell, or in a text or a list of JSON."""
    texts = value if isinstance(value, list) else [value]
    features = [each for text in texts for each in split_features(_text("features", text))]
    if not features:
        raise ValueError(f"{IS['features']} empty")
    return features


def _listed(names: list[str]) -> str:
    """The first few names, each shortened."""
    shown = [repr(name if len(name) <= 40 else f"{name[:40]}…") for name in names[:MAX_NAMED]]
    return ", ".join(shown) + (", …" if len(names) > MAX_NAMED else "")
