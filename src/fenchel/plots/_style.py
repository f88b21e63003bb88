"""Colours, lines and figures that all pictures share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, distinct under colour blindness; dashes distinguish them in grey.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00")
DASHES = ("-", "-", "-", "--", "--", "-.", "-.", ":")
HEAT = "cividis"
EDGE = "#FF6A3D"
GREY = "#666666"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without a window.

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


def line_style(index: int) -> dict[str, Any]:
    """The style of the line with this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + 3 * (index // len(COLOURS))) % len(DASHES)],
        "linewidth": 1.9,
    }


def tidy(axes: Any) -> None:
    """Removes the frame above and on the right, and adds a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
