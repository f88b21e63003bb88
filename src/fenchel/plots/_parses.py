"""A sentence with the few parses that SparseMAP keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SURE = 1 - 1e-6
"""From this weight an arc is in all parses, up to rounding."""
GAP, RISE = 0.2, 0.3
"""The distance of arcs from the words, and their height per word that they span."""


def plot_parses(
    words: Sequence[str], trees: Tensor, weights: Tensor, gold: Sequence[int] | None = None
) -> Figure:
    """Draws a sentence with all arcs of some trees.

    An arc that not all trees have shows its weight. Arcs of the gold tree, or of the tree with the
    largest weight, are above the words, and the others below.

    Args:
        words: n words.
        trees: (K, n): the head of each word, the word itself if it is the root; for example
            `Posterior.codes` of a `DependencyTree`.
        weights: (K,), nonnegative; trees of weight zero are not drawn.
        gold: heads (n) of the correct tree.
    Returns:
        A figure; `figure.savefig("parses.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: for trees or weights of another shape.

    >>> trees = torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> figure = plot_parses(["saw", "her", "duck"], trees, torch.tensor([0.7, 0.3]))
    """
    n = len(words)
    if trees.shape != (len(weights), n):
        raise ValueError(f"`trees` must be ({len(weights)}, {n}), got {tuple(trees.shape)}.")
    above = trees[int(weights.argmax())].tolist() if gold is None else list(gold)
    heads, modifiers, sums = _arcs(trees, weights)
    sides = [1 if above[word] == head else -1 for head, word in zip(heads, modifiers, strict=True)]
    figure = _style.new_figure(max(6.0, 1.05 * n), 4.2)
    axes = figure.subplots()
    for index, word in enumerate(words):
        axes.text(index, 0, word, ha="center", va="center", fontsize="medium")
    unsure = 0
    for head, word, weight, side in zip(heads, modifiers, sums, sides, strict=True):
        colour = _style.palette().grey
        if weight < SURE:
            unsure += 1
            colour = _style.palette().colours[1 + unsure % (len(_style.palette().colours) - 1)]
        _draw(axes, head, word, weight, colour, side)
    axes.set_xlim(-0.7, n - 0.3)
    axes.set_axis_off()
    kept = int((weights > 0).sum())
    right = "gold" if gold is not None else "heaviest"
    axes.set_title(f"{kept} parses; above the words the {right} one", fontsize="small")
    return figure


def _arcs(trees: Tensor, weights: Tensor) -> tuple[list[int], list[int], list[float]]:
    """Heads and modifiers of all arcs of the trees, and the weight of each."""
    n = trees.shape[1]
    marginals = torch.zeros(n, n, dtype=torch.float64)
    words = torch.arange(n)
    for tree, weight in zip(trees.cpu(), weights.detach().double().cpu(), strict=True):
        if weight > 0:
            marginals[tree, words] += weight
    heads, modifiers = marginals.nonzero(as_tuple=True)
    return heads.tolist(), modifiers.tolist(), marginals[heads, modifiers].tolist()


def _draw(axes: Any, head: int, word: int, weight: float, colour: str, side: int) -> None:
    """An arc from head to word, a straight line if the head is the root, and its weight."""
    base = GAP * side
    if head == word:
        x, y = torch.full((2,), float(word)), torch.tensor([4 * base, base])
        label = (float(word), 2.8 * base)
    else:
        start = head + 0.15 * (1 if head < word else -1)  # apart from the arc that ends there
        t = torch.linspace(0, torch.pi, 61)
        x = (start + word) / 2 + (start - word) / 2 * t.cos()
        y = base + side * RISE * abs(head - word) * t.sin()
        label = ((start + word) / 2, base + side * RISE * abs(head - word))
    axes.plot(x.tolist(), y.tolist(), color=colour, linewidth=0.8 + 1.6 * weight)
    axes.plot(word, base, marker="v" if side > 0 else "^", color=colour, markersize=5)
    if weight < SURE:
        axes.text(
            *label,
            f"{weight:.0%}",
            color=colour,
            ha="center",
            va="center",
            fontsize="small",
            bbox={"facecolor": _style.palette().paper, "edgecolor": "none", "pad": 0.6},
        )
