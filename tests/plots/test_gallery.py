"""The pictures show what the mathematics says, and fail clearly without matplotlib."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import fenchel
from fenchel import plots


def curves(*mappings):
    """max_Ω and ŷ₁ as drawn, (mappings, t), and t."""
    left, right = Figure().subplots(1, 2)
    plots.draw_curves(left, right, mappings, zoom=False)
    t = right.lines[0].get_xdata()
    values = [line.get_ydata() for line in left.lines[1:]]
    return t, np.array(values), np.array([line.get_ydata() for line in right.lines])


def simplex_mappings():
    return [mapping for mapping in plots.showcase() if mapping.total == 1.0]


def test_curves_are_comparable_and_derivatives_of_each_other():
    t, values, weights = curves(*simplex_mappings())
    assert (values >= np.maximum(t, 0) - 1e-8).all()
    sparse = [mapping.name != "softmax" for mapping in simplex_mappings()]
    np.testing.assert_allclose(values[sparse][:, -1], t[-1], atol=1e-8)
    slope = np.gradient(values, t, axis=1)[:, 1:-1]
    np.testing.assert_allclose(slope, weights[:, 1:-1], atol=0.02)


def test_fusedmax_has_a_plateau_at_one_half():
    t, _, weights = curves(fenchel.Fusedmax(0.2))
    np.testing.assert_allclose(weights[0][np.abs(t) <= 0.39], 0.5)
    assert (weights[0][np.abs(t) > 0.41] != 0.5).all()


def test_squares_show_the_second_entry():
    axes = Figure().subplots()
    heat = plots.draw_squares([axes], [fenchel.Sparsemax()], points=13)
    grid = heat.get_array().reshape(13, 13)
    assert grid[-1, 0] == 1  # t₁ low, t₂ high
    assert grid[0, -1] == 0
    assert grid[6, 6] == pytest.approx(1 / 3)  # [0, 0, 0]
    assert heat.get_clim() == (0, 1)


def test_gallery_draws_every_mapping_once():
    figure = plots.gallery(points=9)
    labels = [plots.label(mapping) for mapping in plots.showcase()]
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == labels


def test_gallery_draws_a_mapping_before_the_others():
    figure = plots.gallery([fenchel.Sparsemax(), fenchel.Softmax(), fenchel.Ksubset(2)], points=9)
    curve, _, alone = (axes for axes in figure.axes if axes.get_title())
    other, value, own = curve.lines
    t = own.get_xdata()
    np.testing.assert_allclose(own.get_ydata(), np.clip((t + 1) / 2, 0, 1), atol=1e-12)
    np.testing.assert_allclose(other.get_ydata(), 1 / (1 + np.exp(-t)))
    np.testing.assert_allclose(
        np.gradient(value.get_ydata(), t)[1:-1], own.get_ydata()[1:-1], atol=0.02
    )
    assert own.get_linewidth() > 2 * other.get_linewidth()
    (line,) = alone.lines
    assert line.get_ydata()[[0, -1]].tolist() == [0, 1]


def test_gallery_takes_any_mappings():
    figure = plots.gallery([fenchel.Softmax(gamma=0.5)], points=9)
    assert figure.axes[0].get_title() == "softmax γ=0.5"


def test_a_theme_changes_the_colours_and_ends():
    def colours():
        axes = plots.plot_attention(torch.eye(2), ["a", "b"], ["a", "b"]).axes[0]
        return axes.figure.get_facecolor(), axes.images[0].get_cmap().name

    light = colours()
    with plots.theme(dark=True):
        dark = colours()
        with plots.theme():
            assert colours() == light
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    assert colours() == light


def test_gallery_without_curves():
    plots.gallery([fenchel.Ksubset(2)], points=9)


def test_gallery_of_nothing():
    with pytest.raises(ValueError, match="`mappings` must hold at least one mapping, got none"):
        plots.gallery([])


def test_missing_matplotlib_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"drawing needs matplotlib; install it with `pip ins"):
        plots.gallery()
