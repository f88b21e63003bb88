"""Alignments of the words of two sentences as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_COLUMNS = 3
"""How many panels are side by side."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """A panel of `plot_alignments`: weights of all pairs of a row and a column.

    Args:
        title: of the panel.
        weights: (m, n), from 0 to 1; exact zeros stay white, all other cells have a border.
        rows: m words.
        columns: n words.
        structures: (K, m), the column of each row in K structures, −1 for none, drawn as paths;
            for example `Posterior.codes` of a `Sequence` or a `Matching`.
        strengths: (K,), their weights.
    Raises:
        ValueError: for weights of another shape.

    >>> weights = torch.tensor([[1.0, 0.0], [0.4, 0.6]])
    >>> Alignment("rows", weights, ["a", "dog"], ["the", "dog"]).title
    'rows'
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
    """Draws alignments as heat maps, with the structures that they come from as paths.

    Args:
        panels: one or more.
    Returns:
        A figure; `figure.savefig("alignments.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no panel.

    >>> weights = torch.tensor([[1.0, 0.0], [0.4, 0.6]])
    >>> figure = plot_alignments([Alignment("rows", weights, ["a", "dog"], ["the", "dog"])])
    """
    if not panels:
        raise ValueError("`panels` must hold at least one alignment, got none.")
    max_columns = max(len(panel.columns) for panel in panels)
    max_rows = max(len(panel.rows) for panel in panels)
    across = min(len(panels), MAX_COLUMNS)
    down = -(-len(panels) // across)
    figure = _style.new_figure((1.6 + 0.36 * max_columns) * across, (1.7 + 0.36 * max_rows) * down)
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
    axes.imshow(
        shown.numpy(),
        cmap=_style.palette().shades,
        vmin=0,
        vmax=1,
        extent=(-0.5, n - 0.5, m - 0.5, -0.5),
    )
    for row, column in weights.nonzero().tolist():
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(
            Rectangle(corner, 1, 1, fill=False, edgecolor=_style.palette().grey, linewidth=0.5)
        )
    if panel.structures is not None and panel.strengths is not None:
        _paths(axes, panel.structures, panel.strengths)
    axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90, fontsize="small")
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize="small")
    axes.set_title(panel.title)
    axes.tick_params(length=0)


def _paths(axes: Any, structures: Tensor, strengths: Tensor) -> None:
    """Draws a line through the cells of each structure, as wide as its weight."""
    order = strengths.argsort(descending=True).tolist()
    for rank, index in enumerate(order):
        strength = float(strengths[index])
        if strength > 0:
            rows = (structures[index] >= 0).nonzero().flatten()
            colour = _style.palette().colours[1 + rank % (len(_style.palette().colours) - 1)]
            columns = structures[index][rows].tolist()
            axes.plot(columns, rows.tolist(), color=colour, linewidth=0.6 + 2 * strength, alpha=0.8)
