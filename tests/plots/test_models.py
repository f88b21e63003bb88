"""The pictures of hypotheses, attention and candidates show what they are given."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass

import pytest
import torch

from fenchel import plots


@dataclass
class Tree:
    tokens: tuple[str, ...]
    probability: float
    mass: float
    children: tuple[Tree, ...] = ()


@dataclass
class Choice:
    token: str
    probability: float
    candidates: tuple[tuple[str, float], ...]


TREE = Tree(
    (),
    1,
    1,
    (
        Tree(
            tuple("draw"),
            1,
            1,
            (Tree(("n", "end"), 0.664, 0.664), Tree(("e", "d", "end"), 0.336, 0.336)),
        ),
    ),
)
CHOICES = [
    Choice("view", 0.6, (("view", 0.6), ("look", 0.4))),
    Choice("of", 1.0, (("of", 1.0),)),
    Choice("life", 1.0, (("life", 1.0),)),
    Choice("never", 0.0, (("end", 1.0),)),
]


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_tree_has_every_node_and_probability():
    found = texts(plots.plot_hypotheses(TREE))
    assert {"draw", "n", "ed", "drawn", "drawed", "66.4%", "33.6%"} == set(found)
    assert found.count("66.4%") == 2  # of the choice and of the output


def test_a_tree_of_one_output():
    figure = plots.plot_hypotheses(Tree((), 1, 1, (Tree((*"draw", "end"), 1, 1),)))
    assert texts(figure) == ["draw", "draw", "100%"]  # the node, and the whole output


def test_words_are_kept_apart():
    figure = plots.plot_hypotheses(Tree((), 1, 1, (Tree(("the", "tree"), 0.5, 0.5),)))
    assert "the tree" in texts(figure)
    assert texts(figure).count("50.0%") == 2


def test_exact_zeros_are_blank_and_others_outlined():
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])
    axes = plots.plot_attention(weights, ["a", "b", "c"], ["x", "end"]).axes[0]
    drawn = axes.images[0].get_array()
    assert drawn.mask.tolist() == [[True, False, True], [False, True, False]]
    assert len(axes.patches) == 3
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "end"]


@pytest.mark.parametrize("heads", [1, 2])
def test_the_smallest_weight_is_not_blank(heads):
    least = 1e-45  # of float32; the half of it is zero
    weights = torch.tensor([[[1.0, least, 0.0]] + [[1.0, 0.0, 0.0]] * (heads - 1)])
    axes = plots.plot_attention(weights, ["a", "b", "c"], ["x"]).axes[0]
    assert axes.images[0].get_array().mask.tolist() == [[False, False, True]]
    assert len(axes.patches) == 2


def test_tiny_probabilities_are_not_zero_and_large_ones_not_one():
    figure = plots.plot_candidates([Choice("a", 1 - 1e-6, (("a", 1 - 1e-6), ("b", 1e-6)))])
    assert {">99.9%", "<0.1%"} <= set(texts(figure))
    leaves = (Tree(("a",), 1 - 1e-6, 1 - 1e-6), Tree(("b",), 1e-6, 1e-6))
    assert {">99.9%", "<0.1%"} <= set(texts(plots.plot_hypotheses(Tree((), 1, 1, leaves))))


def test_equal_weights_can_be_seen():
    weights = torch.tensor([[0.2, 0.2, 0.1, 0.0, 0.1, 0.4], [0.3, 0.3, 0.3, 0.0, 0.1, 0.0]])
    axes = plots.plot_attention(weights, [*"abcdef"], ["x", "end"]).axes[0]
    widths = [round(patch.get_width(), 2) for patch in axes.patches]
    assert widths == [1.92, 0.92, 0.92, 0.92, 2.92, 0.92]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("a", (2, 0)), ("a", (4, 0))]


def test_several_heads_are_averaged():
    weights = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    axes = plots.plot_attention(weights, ["a", "b"], ["x"]).axes[0]
    assert axes.images[0].get_array().tolist() == [[0.5, 0.5]]


def test_weights_that_do_not_fit_the_tokens():
    with pytest.raises(ValueError, match=r"1 target tokens .* 3 source tokens, got shape \(2, 2\)"):
        plots.plot_attention(torch.zeros(2, 2), ["a", "b", "c"], ["x"])


def test_candidates_and_frames():
    figure = plots.plot_candidates(CHOICES)
    axes = figure.axes[0]
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert bold == ["view", "of", "life", "never"]
    assert {"look", "60.0%", "40.0%", "100%", "0%"} <= set(texts(figure))
    assert len(axes.patches) == 3  # "of life" shares one


def test_no_positions():
    with pytest.raises(ValueError, match="`positions` must hold at least one position, got none"):
        plots.plot_candidates([])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_files(suffix):
    for figure in (
        plots.plot_hypotheses(TREE),
        plots.plot_attention(torch.eye(2), ["a", "b"], ["a", "b"]),
        plots.plot_candidates(CHOICES),
    ):
        file = io.BytesIO()
        figure.savefig(file, format=suffix)
        assert file.getvalue().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_missing_matplotlib_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="drawing needs matplotlib"):
        plots.plot_hypotheses(TREE)
