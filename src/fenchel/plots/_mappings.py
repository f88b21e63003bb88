"""Mappings on two scores as curves, and on three as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..mappings import AbstractMapping
from . import _style
from ._showcase import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REACH = 3.0
"""Scores run from −REACH to REACH."""
ZOOM = (0.75, 1.45, 0.86, 1.01)
"""The inset near the vertex, where mappings differ most: left, right, bottom and top."""


def _line(points: int = 601) -> tuple[Tensor, Tensor]:
    """t, (points,), and the scores [t, 0], (points, 2)."""
    t = torch.linspace(-REACH, REACH, points, dtype=torch.float64)
    return t, torch.stack([t, torch.zeros_like(t)], -1)


def _square(points: int) -> tuple[Tensor, Tensor]:
    """t, (points,), and the scores [t₁, t₂, 0], (points, points, 3), t₁ along the columns."""
    t = torch.linspace(-REACH, REACH, points, dtype=torch.float64)
    second, first = torch.meshgrid(t, t, indexing="ij")
    return t, torch.stack([first, second, torch.zeros_like(first)], -1)


def draw_curves(
    max_axes: Axes, mapping_axes: Axes, mappings: Sequence[AbstractMapping], zoom: bool = True
) -> None:
    """Draws mappings at the scores [t, 0]: max_Ω on one pair of axes, ŷ₁ on the other.

    Args:
        max_axes: for max_Ω([t, 0]) + γΩ([1, 0]); every curve approaches max(t, 0).
        mapping_axes: for the first entry of ŷ([t, 0]), the derivative of the other curve.
        mappings: mappings whose solutions sum to one.
        zoom: whether an inset magnifies the curves near the vertex.

    >>> from fenchel import Softmax, Sparsemax
    >>> from matplotlib.figure import Figure
    >>> left, right = Figure().subplots(1, 2)
    >>> draw_curves(left, right, [Softmax(), Sparsemax()], zoom=False)
    """
    t, scores = _line()
    x = t.numpy()
    vertex = torch.tensor([1.0, 0.0], dtype=torch.float64)
    inset: Any = mapping_axes.inset_axes((0.64, 0.10, 0.35, 0.40)) if zoom else None
    max_axes.plot(x, x.clip(min=0), color=_style.palette().grey, linewidth=1, label="max(t, 0)")
    for index, mapping in enumerate(mappings):
        style = _style.line_style(index)
        shift = mapping.gamma * mapping.omega(vertex)
        max_axes.plot(x, (mapping.max(scores) + shift).numpy(), **style)
        y = mapping(scores)[:, 0].numpy()
        mapping_axes.plot(x, y, label=label(mapping), **style)
        if inset is not None:
            inset.plot(x, y, **style)
    max_axes.set(
        xlabel="t",
        ylabel="regularized maximum",
        title=r"$\mathrm{max}_\Omega$([t, 0]), up to a constant",
    )
    max_axes.legend(loc="upper left", frameon=False)
    mapping_axes.set(xlabel="t", ylabel="weight of the first", title="ŷ([t, 0])₁, its derivative")
    for axes in (max_axes, mapping_axes):
        _style.tidy(axes)
        axes.set_xlim(-REACH, REACH)
    if inset is not None:
        left, right, bottom, top = ZOOM
        inset.set(xlim=(left, right), ylim=(bottom, top))
        inset.set(xticks=[], yticks=[])
        mapping_axes.indicate_inset_zoom(inset, edgecolor=_style.palette().grey)


def draw_curve(
    axes: Axes, mapping: AbstractMapping, others: Sequence[AbstractMapping], colour: str
) -> None:
    """Draws ŷ₁ of a mapping at the scores [t, 0], with those of others behind it, and max_Ω.

    Args:
        axes: to draw on.
        mapping: any; one whose solutions do not sum to one is drawn alone, at [t, 0, 0].
        others: the mappings to compare it with.
        colour: of the curve.
    """
    t, scores = _line(301)
    x = t.numpy()
    if mapping.total == 1.0:
        for other in others:
            if other.total == 1.0:
                axes.plot(x, other(scores)[:, 0].numpy(), color=_style.palette().faint, linewidth=1)
        vertex = torch.tensor([1.0, 0.0], dtype=torch.float64)
        value = mapping.max(scores) + mapping.gamma * mapping.omega(vertex)
        axes.plot(x, value.numpy(), ":", color=_style.palette().grey, linewidth=1.3)
    else:  # of two entries it may have to take both
        scores = torch.cat([scores, torch.zeros_like(scores[:, :1])], -1)
    axes.plot(x, mapping(scores)[:, 0].numpy(), color=colour, linewidth=2.4)
    axes.set(xlim=(-REACH, REACH), ylim=(-0.06, 1.1), yticks=[0, 0.5, 1])
    axes.set_title(label(mapping), fontsize="medium")
    _style.tidy(axes)


def draw_squares(
    axes: Sequence[Axes], mappings: Sequence[AbstractMapping], points: int = 121
) -> Any:
    """Draws the second entry of ŷ([t₁, t₂, 0]) over the square of t₁ and t₂, one mapping per axes.

    White lines are contours. A red line bounds the plateaus of exactly 0 and 1. Fused entries show
    as ridges.

    Args:
        axes: as many as there are mappings.
        mappings: any.
        points: the number of points on a side of the square.
    Returns:
        The last heat map, for a colour bar; all heat maps have the same colours, from 0 to 1.

    >>> from fenchel import Fusedmax
    >>> from matplotlib.figure import Figure
    >>> heat = draw_squares([Figure().subplots()], [Fusedmax(0.2)], points=21)
    """
    t, scores = _square(points)
    x = t.numpy()
    heat = None
    for panel, mapping in zip(axes, mappings, strict=True):
        y = mapping(scores)[..., 1].numpy()
        heat = panel.pcolormesh(
            x, x, y, cmap=_style.HEAT, vmin=0, vmax=1, shading="gouraud", rasterized=True
        )
        levels = [level / 10 for level in range(1, 10) if y.min() < level / 10 < y.max()]
        if levels:
            panel.contour(x, x, y, levels, colors="white", linewidths=0.6, alpha=0.8)
        for edge in (1e-3, 1 - 1e-3):
            flat = (y == round(edge)).any()  # softmax only approaches it
            if flat and y.min() < edge < y.max():
                panel.contour(x, x, y, [edge], colors=_style.palette().edge, linewidths=1.5)
        panel.set_title(label(mapping), fontsize="medium")
        panel.set_aspect("equal")
    return heat
