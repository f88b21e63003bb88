"""How figures change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import _style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def histories(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """A panel for each figure and in it a line for each run, over epochs.

    Args:
        runs: by name, and in each the values of every figure, by its name.
    Returns:
        A figure of matplotlib's.
    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is no run to show.

    >>> figure = histories({"crf": {"uas": [60.0, 64.1]}, "sparsemap": {"uas": [61.2, 65.0]}})
    """
    if not runs:
        raise ValueError("`runs` must hold at least one run, got none.")
    names = list(dict.fromkeys(name for values in runs.values() for name in values))
    figure = _style.new_figure(4.2 * len(names), 3.4)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, axes in zip(names, panels, strict=True):
        for place, (run, values) in enumerate(runs.items()):
            line = values.get(name, ())
            axes.plot(range(1, len(line) + 1), line, label=run, **_style.line_style(place))
        axes.set(xlabel="epoch", title=name)
        _style.tidy(axes)
    panels[0].legend(frameon=False, fontsize="small")
    return figure
