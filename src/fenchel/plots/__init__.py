"""Pictures of mappings, models and structures; only drawing needs matplotlib."""

from ._alignments import Alignment, alignments
from ._attention import plot_attention
from ._candidates import plot_candidates
from ._gallery import gallery
from ._histories import histories
from ._hypotheses import plot_hypotheses
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
    "plot_attention",
    "plot_candidates",
    "plot_hypotheses",
    "showcase",
]
