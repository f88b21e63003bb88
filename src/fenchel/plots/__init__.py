"""Pictures of the mappings; matplotlib is needed to draw, not to import this package."""

from ._gallery import gallery
from ._mappings import draw_curves, draw_squares
from ._showcase import label, showcase

__all__ = ["draw_curves", "draw_squares", "gallery", "label", "showcase"]
