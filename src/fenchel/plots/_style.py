"""Colours, lines and figures: what all pictures share, and the only import of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which stay apart under colour blindness; dashes tell them apart in grey.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00")
DASHES = ("-", "-", "-", "--", "--", "-.", "-.", ":")
HEAT = "cividis"
EDGE = "#FF6A3D"
GREY = "#666666"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, which belongs to no window.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "drawing needs matplotlib; install it with `pip install 'fenchel[plots]'`."
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.09)  # type: ignore[union-attr]
    return figure


def line_style(place: int) -> dict[str, Any]:
    """How the line at that place in a list is drawn."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[(place + 3 * (place // len(COLOURS))) % len(DASHES)],
        "linewidth": 1.9,
    }


def tidy(axes: Any) -> None:
    """No frame above and on the right, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def percent(p: float) -> str:
    """A probability for a reader, rounded neither to nothing nor to all.

    >>> [percent(p) for p in (0.0, 1e-6, 0.664, 1 - 1e-6, 1.0)]
    ['0.0%', '<0.1%', '66.4%', '>99.9%', '100.0%']
    """
    if 0 < p < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < p < 1 else f"{p:.1%}"
