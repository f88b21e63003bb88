"""Pairs that are not those with which a training began: an error, or a note if that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..data._corpus import Encoded
from ._checkpoint import Progress


class Changes:
    """What has changed in the data since a training began.

    Args:
        folder: of the training.
        progress: which remembers numbers of pairs, and digests of them.
        allowed: whether it goes on nevertheless.
        note: is told of each kind of change once, if so.
    """

    def __init__(
        self, folder: Path, progress: Progress, allowed: bool, note: Callable[[str], None]
    ) -> None:
        self._folder, self._progress, self._allowed, self._note = folder, progress, allowed, note
        self._told = set[str]()

    def check_numbers(self, pairs: list[int]) -> None:
        """Checks how many pairs there are to train on and to validate with.

        Raises:
            ValueError: if there were others before, and that is not allowed.
        """
        before, self._progress.pairs = self._progress.pairs, pairs
        if before not in ([], pairs):
            self._found(
                f"{before} pairs to train on and to validate with, and the files now hold {pairs}"
            )

    def check(self, pairs: Encoded, buffer: int | None = None) -> bool:
        """Checks the pairs of a buffer, or those to validate with; returns whether they are others
        than before, and allowed to be.

        Raises:
            ValueError: if they are, and are not.
        """
        digests = self._progress.digests
        name, use = ("validation", "validate with") if buffer is None else (str(buffer), "train on")
        before, digests[name] = digests.get(name), pairs.digest
        changed = before not in (None, pairs.digest)
        if changed:
            self._found(f"other pairs to {use} than the files now hold")
        return changed

    def _found(self, change: str) -> None:
        told = f"the training in {self._folder} began with {change}"
        if not self._allowed:
            raise ValueError(
                f"{told}; choose another `training.folder`, put the old files back, or, if it is "
                "meant to be so, add --allow-changed-data."
            )
        if told not in self._told:
            self._told.add(told)
            self._note(told)
