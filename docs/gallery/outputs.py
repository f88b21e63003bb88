"""Every output that a model considers possible.

A language model with softmax gives each of endlessly many strings some probability. With
sparsemax most have exactly none, and the rest is a tree that fits on a page. Here a model that
counted which letter follows which two lists all it could ever say, new words among them.
"""

from collections import Counter

import torch
from matplotlib.figure import Figure

import fenchel
from fenchel import plots
from fenchel.seq2seq import Node

WORDS = ["stream", "string", "stride", "strike", "strain", "straw", "stroke", "strong"]
LETTERS = [*sorted({letter for word in WORDS for letter in word}), "end"]
COUNTS = Counter(
    (word[max(0, at - 2) : at], letter)
    for word in WORDS
    for at, letter in enumerate([*word, "end"])
)


def step(prefix: str) -> list[tuple[str, float]]:
    """The letters that may follow the last two, with their probabilities."""
    scores = torch.tensor([float(COUNTS[prefix[-2:], letter]) for letter in LETTERS]).log()
    y = fenchel.sparsemax(scores)
    return [(LETTERS[k], float(y[k])) for k in y.nonzero().flatten()]


def grow(prefix: str, probability: float, mass: float, tokens: tuple[str, ...]) -> Node:
    """The tree below a prefix; letters without a choice are joined."""
    options = step(prefix)
    while len(options) == 1 and options[0][0] != "end":
        prefix, tokens = prefix + options[0][0], (*tokens, options[0][0])
        options = step(prefix)
    if len(options) == 1:
        return Node((*tokens, "end"), probability, mass)
    children = tuple(
        Node(("end",), p, mass * p) if a == "end" else grow(prefix + a, p, mass * p, (a,))
        for a, p in options
    )
    return Node(tokens, probability, mass, children)


def picture() -> Figure:
    return plots.plot_hypotheses(Node((), 1, 1, (grow("", 1.0, 1.0, ()),)))


if __name__ == "__main__":
    picture().savefig("outputs.svg")
