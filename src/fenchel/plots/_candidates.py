"""Forced decoding: the tokens that a model considers at each position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .._format import percent
from . import _style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.24
"""The height of a line of text, in inches."""


class Choice(Protocol):
    """One position: a `seq2seq.Position`, or any object with these properties."""

    @property
    def token(self) -> str:
        """The token of the reference."""
        ...

    @property
    def probability(self) -> float:
        """The probability of that token."""
        ...

    @property
    def candidates(self) -> Sequence[tuple[str, float]]:
        """Tokens and their probabilities, the most probable first."""
        ...


def plot_candidates(positions: Sequence[Choice]) -> Figure:
    """Draws the candidates at every position of a reference, whose own tokens are bold.

    Neighbouring positions with a single candidate share a frame: the model would complete them by
    itself. A token of the reference that has probability zero is red.

    Args:
        positions: `seq2seq.explain(…, reference=…).reference`.
    Returns:
        A figure; `figure.savefig("candidates.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are no positions.

    >>> from fenchel.seq2seq import Position
    >>> first = Position("tree", 0.6, (("tree", 0.6), ("wood", 0.4)))
    >>> figure = plot_candidates([first, Position("end", 1.0, (("end", 1.0),))])

    References: peters2019sparse.
    """
    if not positions:
        raise ValueError("`positions` must hold at least one position, got none.")
    columns = [_column(position) for position in positions]
    widths = [0.75 + 0.09 * max(len(token) for token, _, _ in column) for column in columns]
    deepest = max(map(len, columns))
    width, height = sum(widths) + 0.3, LINE * deepest + 0.3
    figure = _style.new_figure(width, height)
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(LINE * deepest + 0.15, -0.15))
    axes.set_axis_off()
    x, begin = 0.15, None
    for index, (column, size) in enumerate(zip(columns, widths, strict=True)):
        _write(axes, column, x, size)
        sure = len(column) == 1
        begin = x if begin is None or not sure else begin
        joined = sure and index + 1 < len(columns) and len(columns[index + 1]) == 1
        if not joined:
            axes.add_patch(_frame(begin, x + size, len(column)))
            begin = None
        x += size
    return figure


def _column(position: Choice) -> list[tuple[str, float, str]]:
    """Tokens, probabilities and the style of each."""
    rows = [(position.token, 0.0, "never")] if position.probability == 0 else []
    for token, p in position.candidates:
        own = (token, p) == (position.token, position.probability)
        rows.append((token, p, "own" if own else "other"))
    return rows


def _write(axes: Axes, column: list[tuple[str, float, str]], x: float, size: float) -> None:
    styles: dict[str, dict[str, Any]] = {
        "own": {"fontweight": "bold", "color": _style.palette().ink},
        "never": {"fontweight": "bold", "color": _style.palette().colours[5]},
        "other": {"color": _style.palette().grey},
    }
    for line, (token, p, kind) in enumerate(column):
        y = LINE * (line + 0.5)
        axes.text(x + 0.1, y, token, va="center", fontsize=9, **styles[kind])
        right = {"ha": "right", "va": "center", "fontsize": 7, "color": _style.palette().grey}
        axes.text(x + size - 0.08, y, percent(p), **right)


def _frame(left: float, right: float, lines: int) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (left + 0.04, 0.0),
        right - left - 0.08,
        LINE * lines,
        boxstyle="round,pad=0,rounding_size=0.05",
        fill=False,
        edgecolor=_style.palette().colours[2] if lines == 1 else _style.palette().grey,
        linewidth=1.1,
    )
