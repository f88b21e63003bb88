"""Pictures of parses, alignments and histories show what they were given."""

from __future__ import annotations

import pytest
import torch

from fenchel import plots

WORDS = ["They", "saw", "her", "duck"]
TREES = torch.tensor([[1, 1, 1, 1], [1, 1, 3, 1], [0, 0, 0, 0]])
WEIGHTS = torch.tensor([0.75, 0.25, 0.0])


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_parses_label_only_arcs_that_not_all_trees_have():
    axes = plots.plot_parses(WORDS, TREES, WEIGHTS).axes[0]
    assert texts(axes) == [*WORDS, "75%", "25%"]
    assert len(axes.lines) == 2 * 5  # five arcs, each with an arrowhead
    assert axes.get_title() == "2 parses; above the words the heaviest one"


def test_arcs_of_the_gold_tree_are_above():
    axes = plots.plot_parses(WORDS, TREES, WEIGHTS, gold=[1, 1, 3, 1]).axes[0]
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["25%"] > 0 > heights["75%"]


def test_parses_of_another_shape():
    with pytest.raises(ValueError, match=r"`trees` must be \(3, 3\), got \(3, 4\)"):
        plots.plot_parses(WORDS[:3], TREES, WEIGHTS)


def test_alignments_border_what_is_not_zero_and_draw_paths():
    weights = torch.tensor([[0.0, 1.0], [0.4, 0.6], [0.0, 0.0]])
    structures, strengths = torch.tensor([[1, 1, -1], [1, 0, -1], [0, 0, 0]]), [0.6, 0.4, 0.0]
    panel = plots.Alignment(
        "matching", weights, list("abc"), list("xy"), structures, torch.tensor(strengths)
    )
    plain = plots.Alignment("plain", weights, list("abc"), list("xy"))
    first, second = plots.plot_alignments([panel, plain]).axes
    assert len(first.patches) == 3
    assert [line.get_xdata().tolist() for line in first.lines] == [[1, 1], [1, 0]]
    assert not second.lines
    assert [label.get_text() for label in first.get_yticklabels()] == list("abc")


def test_bad_alignments():
    with pytest.raises(ValueError, match=r"`weights` must be \(2, 1\), got \(2, 2\)"):
        plots.Alignment("", torch.eye(2), ["a", "b"], ["x"])
    with pytest.raises(ValueError, match="`panels` must hold at least one alignment, got none"):
        plots.plot_alignments([])


def test_histories_have_a_panel_for_each_figure():
    figure = plots.plot_histories(
        {"crf": {"uas": [1.0, 2.0], "trees": [5.0]}, "svm": {"uas": [3.0]}}
    )
    uas, trees = figure.axes
    assert [axes.get_title() for axes in (uas, trees)] == ["uas", "trees"]
    assert [line.get_ydata().tolist() for line in uas.lines] == [[1.0, 2.0], [3.0]]
    assert [text.get_text() for text in uas.get_legend().get_texts()] == ["crf", "svm"]
    with pytest.raises(ValueError, match="`runs` must hold at least one run, got none"):
        plots.plot_histories({})


def test_histories_that_differ_widely_are_logarithmic():
    figure = plots.plot_histories(
        {"dense": {"calls": [256.0], "loss": [0.0]}, "sparsemax": {"calls": [2.0], "loss": [99.0]}}
    )
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear"]


def test_histories_over_another_figure_and_with_many_runs():
    runs = {str(k): {"elbo": [1.0, 2.0], "calls": [3.0, 9.0]} for k in range(9)}
    figure = plots.plot_histories(runs, over="calls")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "calls"
    assert axes.get_title() == "elbo"
    assert axes.lines[0].get_xdata().tolist() == [3.0, 9.0]
    assert axes.get_legend() is None
    assert len(figure.legends[0].get_texts()) == 9
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 9
