"""Attention weights as a map in which exact zeros are blank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import _checks
from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

SHADES = "Blues"
CELL = 0.36
"""Inches of a cell."""


def plot_attention(weights: Tensor, source: Sequence[str], target: Sequence[str]) -> Figure:
    """Draws attention weights: a row for each target token, a column for each source token.

    Nonzero weights are outlined; a weight of exactly zero leaves its cell empty.

    Args:
        weights: (T, S), or (T, heads, S), of which the mean over heads is drawn.
        source: S tokens.
        target: T tokens.
    Returns:
        A figure; `figure.savefig("attention.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the weights do not fit the tokens.

    >>> from fenchel import sparsemax
    >>> figure = plot_attention(sparsemax(torch.eye(3)), ["a", "b", "c"], ["a", "b", "end"])

    References: peters2019sparse.
    """
    _checks.dense_floats("weights", weights)
    if weights.ndim == 3:
        weights = weights.mean(1)
    if tuple(weights.shape) != (len(target), len(source)):
        raise ValueError(
            f"`weights` must have a row for each of {len(target)} target tokens and a column for "
            f"each of {len(source)} source tokens, got shape {tuple(weights.shape)}."
        )
    longest = [max(map(len, words), default=0) * 0.09 for words in (target, source)]
    figure = _style.new_figure(
        1.6 + longest[0] + CELL * len(source), 0.7 + longest[1] + CELL * len(target)
    )
    axes = figure.subplots()
    values = weights.detach().cpu().double()
    on = values > 0
    shown = values.masked_fill(~on, torch.nan)
    heat = axes.imshow(shown.numpy(), cmap=SHADES, vmin=0, vmax=1)
    rows, columns = on.nonzero(as_tuple=True)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        axes.add_patch(_outline(row, column))
    axes.set_xticks(range(len(source)), source, rotation=90 if longest[1] > 0.2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize="small")
    axes.spines[:].set_color("#dddddd")
    figure.colorbar(heat, ax=axes, label="weight", shrink=0.8, pad=0.02)
    return figure


def _outline(row: int, column: int) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (column - 0.46, row - 0.46),
        0.92,
        0.92,
        fill=False,
        edgecolor=_style.COLOURS[2],
        linewidth=1.1,
    )
