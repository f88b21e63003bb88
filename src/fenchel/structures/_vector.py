"""What structures over d entries share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import _checks
from ._coded import CodedStructure


@dataclass(frozen=True)
class VectorStructure(CodedStructure):
    """Some of d entries, with scores (d,), fewer where `lengths` says so.

    Args:
        d: the number of entries, or the largest in a ragged batch.
    """

    projects: ClassVar[bool] = True

    d: int

    def __post_init__(self) -> None:
        _checks.size("d", self.d)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.d,)
