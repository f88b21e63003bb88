"""Colours, lines and figures that all pictures share, on light paper and on dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "-", "-", "--", "--", "-.", "-.", ":")
HEAT = "cividis"
MISSING = "drawing needs matplotlib; install it with `pip install 'fenchel[plots]'`."


@dataclass(frozen=True)
class Palette:
    """The colours of a picture: text and lines, fainter ones, the paper, and those of data."""

    ink: str
    grey: str
    faint: str
    paper: str
    box: str
    edge: str
    shades: str
    colours: tuple[str, ...]


# The colours of Okabe and Ito, distinct under colour blindness; dashes distinguish them in grey.
LIGHT = Palette(
    ink="#000000",
    grey="#666666",
    faint="#dddddd",
    paper="#ffffff",
    box="#f4f2ec",
    edge="#FF6A3D",
    shades="Blues",
    colours=(
        *("#000000", "#E69F00", "#0072B2", "#009E73"),
        *("#CC79A7", "#D55E00", "#56B4E9", "#7A6A00"),
    ),
)
DARK = Palette(
    ink="#e8e6e1",
    grey="#a3a8b0",
    faint="#383c42",
    paper="#131416",
    box="#23262b",
    edge="#FF8A5C",
    shades="Blues_r",
    colours=(
        *("#e8e6e1", "#E69F00", "#5CB3F0", "#2FC79A"),
        *("#DE93BC", "#F0803C", "#8CD0F7", "#C9B52E"),
    ),
)
_PALETTE: ContextVar[Palette] = ContextVar("palette", default=LIGHT)


def palette() -> Palette:
    """The colours of the theme that is in force."""
    return _PALETTE.get()


@contextmanager
def theme(*, dark: bool = False) -> Iterator[None]:
    """Draws what is drawn inside with the colours of the package, for light or dark pages.

    Matplotlib's own defaults are set too, so a figure of yours matches. Without a theme pictures
    have the colours for light pages, and else what matplotlib is set to.

    Args:
        dark: whether the page that shows the picture is dark.
    Raises:
        ImportError: if matplotlib is not installed.

    >>> from fenchel import plots
    >>> with plots.theme(dark=True):
    ...     figure = plots.plot_attention(torch.eye(2), ["a", "b"], ["a", "b"])
    >>> figure.get_facecolor()[:3] < (0.1, 0.1, 0.1)
    True
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(MISSING) from error
    chosen = DARK if dark else LIGHT
    token = _PALETTE.set(chosen)
    try:
        with matplotlib.rc_context(_settings(chosen)):
            yield
    finally:
        _PALETTE.reset(token)


def _settings(chosen: Palette) -> Any:
    from cycler import cycler

    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    papers = ("figure.facecolor", "axes.facecolor")
    return {
        **dict.fromkeys(inks, chosen.ink),
        **dict.fromkeys(papers, chosen.paper),
        "axes.prop_cycle": cycler(color=chosen.colours),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "grid.color": chosen.faint,
        "legend.frameon": False,
        "svg.hashsalt": "fenchel",  # so that the same picture has the same file
    }


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without a window.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.09)  # type: ignore[union-attr]
    return figure


def line_style(index: int) -> dict[str, Any]:
    """The style of the line with this index."""
    colours = palette().colours
    return {
        "color": colours[index % len(colours)],
        "linestyle": DASHES[(index + 3 * (index // len(colours))) % len(DASHES)],
        "linewidth": 1.9,
    }


def tidy(axes: Any) -> None:
    """Removes the frame above and on the right, and adds a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=palette().faint, linewidth=0.6)
    axes.set_axisbelow(True)
