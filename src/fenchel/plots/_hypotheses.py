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
    leaves = max(1, sum(1 for _ in _leaves(tree)))
    width, height = max(3.0, _reach(tree) + 0.6), 0.5 + ROW * leaves
    figure = _style.new_figure(width, height)
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(leaves - 0.4, -0.6))
    axes.set_axis_off()
    free = iter(range(leaves))
    for child in tree.children:
        _draw(axes, child, 0.15, free, single=len(tree.children) == 1)
    return figure


def _leaves(tree: Tree) -> Iterator[Tree]:
    if not tree.children:
        yield tree
    for child in tree.children:
        yield from _leaves(child)


def _length(tree: Tree) -> float:
    return LETTER * len(_text(tree)) + 0.24


def _text(tree: Tree) -> str:
    """The tokens of a node, with spaces between them unless all are single characters."""
    joint = "" if all(len(token) == 1 for token in tree.tokens if token != "end") else " "
    return joint.join(token for token in tree.tokens if token != "end") or "·"


def _reach(tree: Tree) -> float:
    after = max((_reach(child) for child in tree.children), default=0.0)
    return (_length(tree) if tree.tokens else 0.0) + GAP + after


def _draw(axes: Axes, node: Tree, x: float, free: Iterator[int], single: bool) -> float:
    """Draws a node and its children, and returns its vertical position."""
    right = x + _length(node)
    if node.children:
        heights = [_draw(axes, child, right + GAP, free, False) for child in node.children]
        y = sum(heights) / len(heights)
        for child, height in zip(node.children, heights, strict=True):
            _edge(axes, (right, y), (right + GAP, height), child.probability)
    else:
        y = float(next(free))
        axes.text(right + 0.12, y, percent(node.mass), va="center", fontsize=9, color=_style.palette().grey)
    box = {"boxstyle": "round,pad=0.25", "facecolor": style.box, "edgecolor": style.grey}
    axes.text(
        (x + right) / 2, y, _text(node), ha="center", va="center", family="monospace", bbox=box
    )
    if single and node.probability < 1:
        axes.text(x, y - 0.45, percent(node.probability), fontsize=8, color=_style.palette().colours[2])
    return y


def _edge(
    axes: Axes, begin: tuple[float, float], end: tuple[float, float], probability: float
) -> None:
    """Draws an edge, as wide as the probability of the child."""
    (x0, y0), (x1, y1) = begin, end
    bend = (x0 + x1) / 2 - 0.2
    axes.plot(
        [x0, bend, bend + 0.12, x1],
        [y0, y0, y1, y1],
        color=_style.palette().colours[2],
        linewidth=0.8 + 2.4 * probability,
        solid_joinstyle="round",
        solid_capstyle="round",
        alpha=0.75,
        zorder=0,
    )
    axes.text(
        x1 - 0.14,
        y1 - 0.1,
        percent(probability),
        ha="right",
        va="bottom",
        fontsize=8,
        color=_style.palette().colours[2],
    )
