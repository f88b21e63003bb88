"""Which words of one sentence go with which of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3
"""How many panels stand side by side."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """A panel of `alignments`: weights of all pairs of a row and a column.

    Args:
        title: of the panel.
        weights: (m, n), from 0 to 1; exact zeros stay white, all else has a border.
        rows: m words.
        columns: n words.
        structures: (K, m), the column of each row in a few structures, −1 for none, as
            `Posterior.codes` of a `Sequence` or a `Matching` has them; drawn as paths.
        strengths: (K,), their weights.
    Raises:
        ValueError: for weights of another shape.
    """

    title: str
    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    structures: Tensor | None = None
    strengths: Tensor | None = None

    def __post_init__(self) -> None:
        shape = (len(self.rows), len(self.columns))
        if self.weights.shape != shape:
            raise ValueError(f"`weights` must be {shape}, got {tuple(self.weights.shape)}.")


def plot_alignments(panels: Sequence[Alignment]) -> Figure:
    """Heat maps of alignments side by side, with the structures that they come from as paths.

    Args:
        panels: one or more.
    Returns:
        A figure of matplotlib's.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no panel.

    >>> weights = torch.tensor([[1.0, 0.0], [0.4, 0.6]])
    >>> figure = plot_alignments([Alignment("rows", weights, ["a", "dog"], ["the", "dog"])])
    """
    if not panels:
        raise ValueError("`panels` must hold at least one alignment, got none.")
    widest = max(len(panel.columns) for panel in panels)
    tallest = max(len(panel.rows) for panel in panels)
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    figure = _style.new_figure((1.6 + 0.36 * widest) * across, (1.7 + 0.36 * tallest) * down)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Any, panel: Alignment) -> None:
    from matplotlib.patches import Rectangle

    weights = panel.weights.detach().float().cpu()
    shown = torch.where(weights > 0, weights, torch.nan)
    m, n = weights.shape
    axes.imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1, extent=(-0.5, n - 0.5, m - 0.5, -0.5))
    for row, column in weights.nonzero().tolist():
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=_style.GREY, linewidth=0.5))
    if panel.structures is not None and panel.strengths is not None:
        _paths(axes, panel.structures, panel.strengths)
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90, fontsize="small")
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize="small")
    axes.set_title(panel.title)
    axes.tick_params(length=0)


def _paths(axes: Any, structures: Tensor, strengths: Tensor) -> None:
    """Lines through the cells of each structure, the wider the heavier it is."""
    order = strengths.argsort(descending=True).tolist()
    for place, index in enumerate(order):
        strength = float(strengths[index])
        if strength > 0:
            rows = (structures[index] >= 0).nonzero().flatten()
            colour = _style.COLOURS[1 + place % (len(_style.COLOURS) - 1)]
            columns = structures[index][rows].tolist()
            axes.plot(columns, rows.tolist(), color=colour, linewidth=0.6 + 2 * strength, alpha=0.8)
