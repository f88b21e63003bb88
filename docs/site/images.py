"""Draws mappings and draw of docs/images, light and dark: `python docs/site/images.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from fenchel import plots
from fenchel.seq2seq import Node

FOLDER = Path(__file__).parents[1] / "images"
OUTPUTS = {"drawn": 0.478243, "drawed": 0.429908, "drew": 0.0759458, "drewn": 0.0159032}
"""What one model of `make demo` said of the past participle of draw."""


def draw() -> Figure:
    """The tree of these outputs."""
    a, e = OUTPUTS["drawn"] + OUTPUTS["drawed"], OUTPUTS["drew"] + OUTPUTS["drewn"]

    def leaf(text: str, output: str, mass: float) -> Node:
        return Node((*text, "end"), OUTPUTS[output] / mass, OUTPUTS[output])

    branches = (
        Node(tuple("aw"), a, a, (leaf("n", "drawn", a), leaf("ed", "drawed", a))),
        Node(tuple("ew"), e, e, (leaf("", "drew", e), leaf("n", "drewn", e))),
    )
    return plots.plot_hypotheses(Node((), 1, 1, (Node(tuple("dr"), 1, 1, branches),)))


PICTURES: dict[str, Callable[[], Figure]] = {"mappings.png": plots.gallery, "draw.svg": draw}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        for dark in (False, True):
            path = FOLDER / (name.replace(".", "-dark.") if dark else name)
            with plots.theme(dark=dark):
                picture().savefig(
                    path, dpi=130, metadata=None if path.suffix == ".png" else {"Date": None}
                )
