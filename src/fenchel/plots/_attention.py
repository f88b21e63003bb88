"""Attention weights as a map in which exact zeros are blank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from string import ascii_lowercase
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import _checks
from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

CELL = 0.36
"""The side of a cell, in inches."""


def plot_attention(weights: Tensor, source: Sequence[str], target: Sequence[str]) -> Figure:
    """Draws attention weights: a row for each target token, a column for each source token.

    Nonzero weights are outlined; neighbours of equal weight form one segment. Segments of a row
    with equal weights have the same letter. A weight of exactly zero leaves its cell empty.

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

    References: peters2019sparse, niculae2017regularized.
    """
    _checks.check_float_tensor("weights", weights)
    weights = weights.detach().cpu().double()  # where the mean of denormals is not zero
    if weights.ndim == 3:
        weights = weights.mean(1)
    if tuple(weights.shape) != (len(target), len(source)):
        raise ValueError(
            f"`weights` must have a row for each of {len(target)} target tokens and a column for "
            f"each of {len(source)} source tokens, got shape {tuple(weights.shape)}."
        )
    widths = [max(map(len, words), default=0) * 0.09 for words in (target, source)]
    figure = _style.new_figure(
        1.6 + widths[0] + CELL * len(source), 0.7 + widths[1] + CELL * len(target)
    )
    axes = figure.subplots()
    shown = weights.masked_fill(weights <= 0, torch.nan)
    heat = axes.imshow(shown.numpy(), cmap=_style.palette().shades, vmin=0, vmax=1)
    for row, entries in enumerate(weights.tolist()):
        for first, last, letter in _segments(entries):
            axes.add_patch(_outline(row, first, last))
            if letter:
                colour = (
                    _style.palette().paper if entries[first] > 0.5 else _style.palette().colours[2]
                )
                center = ((first + last) / 2, row)
                axes.annotate(
                    letter, center, color=colour, fontsize="small", ha="center", va="center"
                )
    axes.set_xticks(range(len(source)), source, rotation=90 if widths[1] > 0.2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize="small")
    axes.spines[:].set_color(_style.palette().faint)
    figure.colorbar(heat, ax=axes, label="weight", shrink=0.8, pad=0.02)
    return figure


def _segments(weights: list[float]) -> Iterator[tuple[int, int, str]]:
    """The first and the last column of each segment, and its letter.

    The letter is empty if no other segment has the same weight.
    """
    groups = [list(group) for _, group in groupby(enumerate(weights), key=lambda pair: pair[1])]
    segments = [(group[0][0], group[-1][0], group[0][1]) for group in groups if group[0][1] > 0]
    times = Counter(weight for _, _, weight in segments)
    letters = dict(zip((w for w in times if times[w] > 1), ascii_lowercase, strict=False))
    for first, last, weight in segments:
        yield first, last, letters.get(weight, "")


def _outline(row: int, first: int, last: int) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (first - 0.46, row - 0.46),
        last - first + 0.92,
        0.92,
        fill=False,
        edgecolor=_style.palette().colours[2],
        linewidth=1.1,
    )
