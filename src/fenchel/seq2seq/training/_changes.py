"""Whether a resumed training still has the pairs that it began with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..data._corpus import Encoded
from ._checkpoint import Progress


class DataChanges:
    """Compares the pairs with those that a training began with. A change is an error, or a note.

    Args:
        folder: of the training.
        progress: which stores the numbers of pairs, and their digests.
        allowed: whether training may go on after a change.
        note: is called with each kind of change once, if changes are allowed.
    """

    def __init__(
        self, folder: Path, progress: Progress, allowed: bool, note: Callable[[str], None]
    ) -> None:
        self._folder, self._progress, self._allowed, self._note = folder, progress, allowed, note
        self._noted = set[str]()

    def check_counts(self, counts: list[int]) -> None:
        """Checks the numbers of training and validation pairs.

        Raises:
            ValueError: if they changed, and that is not allowed.
        """
        before, self._progress.pairs = self._progress.pairs, counts
        if before not in ([], counts):
            self._report(
                f"{before} pairs to train on and to validate with, and the files now hold {counts}"
            )

    def check(self, pairs: Encoded, buffer: int | None = None) -> bool:
        """Checks the training pairs of a buffer, or the validation pairs if `buffer` is None.

        Returns:
            Whether they changed.
        Raises:
            ValueError: if they changed, and that is not allowed.
        """
        digests = self._progress.digests
        name, use = ("validation", "validate with") if buffer is None else (str(buffer), "train on")
        before, digests[name] = digests.get(name), pairs.digest
        has_changed = before not in (None, pairs.digest)
        if has_changed:
            self._report(f"other pairs to {use} than the files now hold")
        return has_changed

    def _report(self, change: str) -> None:
        text = f"the training in {self._folder} began with {change}"
        if not self._allowed:
            raise ValueError(
                f"{text}; choose another `training.folder`, put the old files back, or, if it is "
                "meant to be so, add --allow-changed-data."
            )
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)
