"""What the command line asks of every case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Thread counts to measure with, and whether only to see that all works."""

    threads: tuple[int, ...] = (1, 2)
    quick: bool = False

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 41
