"""The cases by name: each a title, and a function from options to rows of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..results import Row
from . import accuracy, losses, mappings
from .options import Options


@dataclass(frozen=True)
class Case:
    """A benchmark: what it measures, and its rows, one at a time."""

    title: str
    rows: Callable[[Options], Iterator[Row]]


CASES = {
    "mappings": Case(mappings.TITLE, mappings.rows),
    "losses": Case(losses.TITLE, losses.rows),
    "accuracy": Case(accuracy.TITLE, accuracy.rows),
}
