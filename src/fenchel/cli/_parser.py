"""The parser of the command line, which accepts options anywhere among the other words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """A parser that accepts options between the words of its last positional argument.

    If that argument takes any number of words, argparse itself ends them at the first option.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = super().parse_known_args(args, namespace or argparse.Namespace())
        last = self._get_positional_actions()[-1:]
        if not last or last[0].nargs not in ("*", "+"):
            return found, rest
        words = [word for word in rest if not word.startswith("-")]
        kind: Any = last[0].type or str
        setattr(found, last[0].dest, [*getattr(found, last[0].dest), *map(kind, words)])
        return found, [word for word in rest if word.startswith("-")]
