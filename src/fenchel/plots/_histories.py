"""How figures change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSIDE = 6
"""The most runs whose names fit into a panel."""
WIDE = 50
"""How many times larger the largest value of a panel is than the least where it is logarithmic."""


def plot_histories(
    runs: Mapping[str, Mapping[str, Sequence[float]]], over: str | None = None
) -> Figure:
    """A panel for each figure and in it a line for each run, over epochs or over a figure.

    A panel is logarithmic where its values are positive and differ widely.

    Args:
        runs: by name, and in each the values of every figure, by its name.
        over: the figure along the horizontal axis, on a logarithmic scale; None for epochs.
    Returns:
        A figure of matplotlib's.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no run to show.

    >>> figure = plot_histories({"crf": {"uas": [60.0, 64.1]}, "sparsemap": {"uas": [61.2, 65.0]}})
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, got none.")
    names = list(dict.fromkeys(name for values in runs.values() for name in values if name != over))
    beside = 1.8 if len(runs) > INSIDE else 0.0
    figure = _style.new_figure(4.2 * len(names) + beside, 3.4)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        for place, (run, values) in enumerate(runs.items()):
            line = values.get(name, ())
            along = range(1, len(line) + 1) if over is None else values[over]
            axes.plot(along, line, label=run, **_style.line_style(place))
        axes.set(xlabel=over or "epoch", title=name)
        if over is not None:
            axes.set_xscale("log")
        shown = [value for values in runs.values() for value in values.get(name, ())]
        if shown and min(shown) > 0 and max(shown) > WIDE * min(shown):
            axes.set_yscale("log")
        _style.tidy(axes)
    if len(runs) <= INSIDE:
        panels[0].legend(frameon=False, fontsize="small")
    else:
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside right upper", frameon=False, fontsize="small")
    return figure
