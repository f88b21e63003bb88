"""Pictures of mappings and models; matplotlib is needed to draw, not to import this package."""

from ._attention import plot_attention
from ._candidates import plot_candidates
from ._gallery import gallery
from ._hypotheses import plot_hypotheses
from ._mappings import draw_curves, draw_squares
from ._showcase import label, showcase

__all__ = [
    "draw_curves",
    "draw_squares",
    "gallery",
    "label",
    "plot_attention",
    "plot_candidates",
    "plot_hypotheses",
    "showcase",
]
