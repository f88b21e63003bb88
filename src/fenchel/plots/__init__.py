"""Pictures of mappings, models and structures; only drawing needs matplotlib."""

from ._alignments import Alignment, plot_alignments
from ._attention import plot_attention
from ._candidates import plot_candidates
from ._gallery import gallery
from ._histories import plot_histories
from ._hypotheses import plot_hypotheses
from ._mappings import draw_curves, draw_squares
from ._parses import plot_parses
from ._showcase import label, showcase
from ._style import theme

__all__ = [
    "Alignment",
    "draw_curves",
    "draw_squares",
    "gallery",
    "label",
    "plot_alignments",
    "plot_attention",
    "plot_candidates",
    "plot_histories",
    "plot_hypotheses",
    "plot_parses",
    "showcase",
    "theme",
]
