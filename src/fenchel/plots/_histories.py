"""Metrics over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 6
"""With more runs than this, the legend is outside the panels."""
LOG_RATIO = 50
"""A panel is logarithmic if its largest value is this many times its smallest."""


def plot_histories(
    runs: Mapping[str, Mapping[str, Sequence[float]]], over: str | None = None
) -> Figure:
    """Draws a panel for each metric, with a line for each run, over epochs or another metric.

    A panel is logarithmic if its values are positive and differ widely.

    Args:
        runs: for the name of each run, the values of every metric by its name.
        over: the metric on the horizontal axis, in a logarithmic scale; None for epochs.
    Returns:
        A figure; `figure.savefig("histories.svg")` writes it.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no run to show.

    >>> figure = plot_histories({"crf": {"uas": [60.0, 64.1]}, "sparsemap": {"uas": [61.2, 65.0]}})
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, got none.")
    names = list(dict.fromkeys(name for values in runs.values() for name in values if name != over))
    legend_width = 1.8 if len(runs) > MAX_NAMES else 0.0
    figure = _style.new_figure(4.2 * len(names) + legend_width, 3.4)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        for index, (run, values) in enumerate(runs.items()):
            line = values.get(name, ())
            along = range(1, len(line) + 1) if over is None else values[over]
            axes.plot(along, line, label=run, **_style.line_style(index))
        axes.set(xlabel=over or "epoch", title=name)
        if over is not None:
            axes.set_xscale("log")
        shown = [value for values in runs.values() for value in values.get(name, ())]
        if shown and min(shown) > 0 and max(shown) > LOG_RATIO * min(shown):
            axes.set_yscale("log")
        _style.tidy(axes)
    if len(runs) <= MAX_NAMES:
        panels[0].legend(frameon=False, fontsize="small")
    else:
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside right upper", frameon=False, fontsize="small")
    return figure
