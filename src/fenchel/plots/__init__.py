"""Pictures of mappings, parses and alignments; only drawing needs matplotlib."""

from ._alignments import Alignment, alignments
from ._gallery import gallery
from ._histories import histories
from ._mappings import draw_curves, draw_squares
from ._parses import parses
from ._showcase import label, showcase

__all__ = [
    "Alignment",
    "alignments",
    "draw_curves",
    "draw_squares",
    "gallery",
    "histories",
    "label",
    "parses",
    "showcase",
]
