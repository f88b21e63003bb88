"""The tree of the outputs that a model considers possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from .._format import percent
from . import _style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTER = 0.1
"""The width of a letter, in inches."""
GAP = 0.85
"""The distance from a node to its children, in inches."""
ROW = 0.42
"""The height of a leaf, in inches."""
MARGIN = 0.15


class Tree(Protocol):
    """A tree to draw: a `seq2seq.Node`, or any object with these properties."""

    @property
    def tokens(self) -> Sequence[str]:
        """The tokens of the node, without a branch between them."""
        ...

    @property
    def probability(self) -> float:
        """The probability of these tokens, given those before."""
        ...

    @property
    def mass(self) -> float:
        """The probability of all tokens from the root to here."""
        ...

    @property
    def children(self) -> Sequence[Tree]:
        """The nodes that follow."""
        ...


def plot_hypotheses(tree: Tree) -> Figure:
    """Draws a tree of hypotheses from left to right, with the probability of every choice.

    The whole outputs stand in a column on the right, each with its probability.

    Args:
        tree: `seq2seq.explain(…).tree`; the root itself has no tokens.
    Returns:
        A figure; `figure.savefig("tree.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.

    >>> from fenchel.seq2seq import Node
    >>> leaves = (Node(("n", "end"), 0.7, 0.7), Node(("e", "d", "end"), 0.3, 0.3))
    >>> figure = plot_hypotheses(Node((), 1, 1, (Node(tuple("draw"), 1, 1, leaves),)))

    References: peters2019sparse.
    """
    places = [(_reach(path), _joined(path), path[-1]) for path in _paths(tree)]
    column = max((reach for reach, _, _ in places), default=0.0) + 0.2
    longest = max((len(text) for _, text, _ in places), default=0)
    width, height = column + LETTER * longest + 0.85, 0.3 + ROW * max(1, len(places))
    figure = _style.new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(len(places) - 0.35, -0.65))
    axes.set_axis_off()
    free = iter(range(len(places)))
    for child in tree.children:
        _draw(axes, child, MARGIN, free, single=len(tree.children) == 1)
    for row, (reach, text, leaf) in enumerate(places):
        _name(axes, text, leaf, row, reach + 0.1, column)
    return figure


def _paths(tree: Tree) -> Iterator[list[Tree]]:
    """The nodes from the root, which has no tokens, to each leaf."""
    for child in tree.children:
        if child.children:
            yield from ([child, *path] for path in _paths(child))
        else:
            yield [child]


def _reach(path: Sequence[Tree]) -> float:
    """Where the last node of a path ends."""
    return MARGIN + sum(map(_length, path)) + GAP * (len(path) - 1)


def _length(node: Tree) -> float:
    return LETTER * len(_joined([node])) + 0.24


def _joined(path: Sequence[Tree]) -> str:
    """The tokens of nodes, with spaces between them unless all are single characters."""
    tokens = [token for node in path for token in node.tokens if token != "end"]
    return ("" if all(len(token) == 1 for token in tokens) else " ").join(tokens) or "·"


def _draw(axes: Axes, node: Tree, x: float, free: Iterator[int], single: bool) -> float:
    """Draws a node and its children, and returns its vertical position."""
    style = _style.palette()
    right = x + _length(node)
    if node.children:
        heights = [_draw(axes, child, right + GAP, free, False) for child in node.children]
        y = sum(heights) / len(heights)
        for child, height in zip(node.children, heights, strict=True):
            _edge(axes, (right, y), (right + GAP, height), child.probability)
    else:
        y = float(next(free))
    box = {"boxstyle": "round,pad=0.25", "facecolor": style.box, "edgecolor": style.grey}
    center, text = (x + right) / 2, _joined([node])
    axes.text(center, y, text, ha="center", va="center", family="monospace", bbox=box)
    if single and node.probability < 1:
        odds = percent(node.probability)
        axes.text(x, y - 0.45, odds, fontsize=8, color=style.colours[2])
    return y


def _name(axes: Axes, text: str, leaf: Tree, row: int, end: float, column: float) -> None:
    """Writes the whole output and its probability, in one column for all leaves."""
    style = _style.palette()
    if end < column - 0.15:
        axes.plot([end, column - 0.06], [row, row], ":", color=style.faint, zorder=0)
    axes.text(column, row, text, va="center", family="monospace", fontweight="bold")
    odds = {"va": "center", "ha": "right", "fontsize": 9, "color": style.grey}
    axes.text(axes.get_xlim()[1] - 0.1, row, percent(leaf.mass), **odds)


def _edge(
    axes: Axes, begin: tuple[float, float], end: tuple[float, float], probability: float
) -> None:
    """Draws an edge, as wide as the probability of the child."""
    (x0, y0), (x1, y1) = begin, end
    colour = _style.palette().colours[2]
    bend = x0 + 0.2
    axes.plot(
        [x0, bend, bend + 0.12, x1],
        [y0, y0, y1, y1],
        color=colour,
        linewidth=0.8 + 2.4 * probability,
        solid_joinstyle="round",
        solid_capstyle="round",
        alpha=0.75,
        zorder=0,
    )
    odds = {"ha": "right", "va": "bottom", "fontsize": 8, "color": colour}
    axes.text(x1 - 0.08, y1 - 0.1, percent(probability), **odds)
