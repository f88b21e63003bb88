"""The gallery: every mapping as a curve on two scores and as a heat map on three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..mappings import AbstractMapping
from . import _style
from ._mappings import draw_curves, draw_squares
from ._showcase import showcase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 5


def gallery(mappings: Sequence[AbstractMapping] | None = None, points: int = 121) -> Figure:
    """Draws mappings as the papers do: max_Ω and ŷ on [t, 0], and ŷ₂ on [t₁, t₂, 0].

    Args:
        mappings: by default one of every registered kind. Mappings whose solutions do not sum to
            one appear only as heat maps.
        points: the number of points on a side of each heat map.
    Returns:
        A figure; `figure.savefig("mappings.png")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no mapping to show.

    >>> from fenchel import Softmax, Sparsemax
    >>> figure = gallery([Softmax(), Sparsemax()], points=21)
    """
    shown = list(showcase() if mappings is None else mappings)
    if not shown:
        raise ValueError("`mappings` must hold at least one mapping, got none.")
    curves = [mapping for mapping in shown if mapping.total == 1.0]
    rows = -(-len(shown) // COLUMNS)
    figure = _style.new_figure(12.5, 5.0 + 3.0 * rows)
    parts: Any = figure.subfigures(2, 1, height_ratios=[5.0, 3.0 * rows])
    upper, lower = parts

    left, right = upper.subplots(1, 2)
    draw_curves(left, right, curves)
    if curves:
        right.legend(loc="upper left", frameon=False, fontsize="small")

    grid = lower.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    cells = list(grid.flat)
    heat = draw_squares(cells[: len(shown)], shown, points)
    for axes in cells[max(0, len(shown) - COLUMNS) : len(shown)]:
        axes.tick_params(labelbottom=True)  # also above an empty cell
    for axes in cells[len(shown) :]:
        axes.set_axis_off()
    lower.colorbar(heat, ax=grid, label="weight of the second entry", shrink=0.8, pad=0.01)
    lower.suptitle(
        "ŷ([t₁, t₂, 0])₂: plateaus of exactly 0 and 1 (red edge), ridges where entries fuse"
    )
    lower.supxlabel("t₁")
    lower.supylabel("t₂")
    return figure
