"""The gallery: every mapping as a curve on two scores and as a heat map on three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..mappings import AbstractMapping
from . import _style
from ._mappings import draw_curve, draw_squares
from ._showcase import showcase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 5
CURVE, SQUARE = 1.5, 2.4
"""The heights of a curve and of a heat map, in inches."""
CURVE_NOTE = (
    "above: scores [t, 0]",
    "line: weight of the first",
    "dots: regularized maximum",
    "grey: the others",
    "ksubset: scores [t, 0, 0]",
)
SQUARE_NOTE = (
    "below: scores [t₁, t₂, 0]",
    "red: edge of exact 0 and 1",
    "ridges: entries that fuse",
)


def gallery(mappings: Sequence[AbstractMapping] | None = None, points: int = 121) -> Figure:
    """Draws each mapping alone: above ŷ₁ on [t, 0] as a curve, below ŷ₂ on [t₁, t₂, 0] as a map.

    Behind a curve are those of the other mappings, in grey. The dotted line is the regularized
    maximum, whose derivative the curve is.

    Args:
        mappings: by default one of every registered kind.
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
    across = min(COLUMNS, len(shown))
    down = -(-len(shown) // across)
    figure = _style.new_figure(2.5 * across, (CURVE + SQUARE + 0.35) * down + 0.4)
    grid: Any = figure.subplots(
        2 * down, across, height_ratios=[CURVE, SQUARE] * down, squeeze=False
    )
    curves, squares = list(grid[::2].flat), list(grid[1::2].flat)
    for index, (axes, mapping) in enumerate(zip(curves, shown, strict=False)):
        others = [other for other in shown if other is not mapping]
        draw_curve(axes, mapping, others, _style.line_style(index)["color"])
        axes.tick_params(labelsize="small", labelleft=index % across == 0)
    heat = draw_squares(squares[: len(shown)], shown, points)
    for index, axes in enumerate(squares[: len(shown)]):
        axes.set_title("")
        axes.tick_params(labelsize="small", labelleft=index % across == 0)
    for axes in (*curves[len(shown) :], *squares[len(shown) :]):
        axes.set_axis_off()
    _explain(curves, squares, heat, len(shown))
    return figure


def _explain(curves: list[Any], squares: list[Any], heat: Any, count: int) -> None:
    """Says how to read the picture: in the first free cell, or beside the last heat map."""
    curves[0].set_ylabel("weight of the first")
    squares[0].set(xlabel="t₁", ylabel="t₂")
    if count == len(curves):
        squares[-1].figure.colorbar(heat, ax=squares[-1], shrink=0.8, label="weight of the second")
        return
    for axes, lines in ((curves[count], CURVE_NOTE), (squares[count], SQUARE_NOTE)):
        text = "\n".join(lines)
        axes.text(0.02, 0.97, text, va="top", fontsize="small", linespacing=1.5)
    inset = squares[count].inset_axes((0.02, 0.42, 0.9, 0.08))
    bar = squares[count].figure.colorbar(
        heat, cax=inset, orientation="horizontal", ticks=[0, 0.5, 1]
    )
    bar.set_label("weight of the second", fontsize="small")
    inset.tick_params(labelsize="small")
