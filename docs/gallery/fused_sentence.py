"""Fusedmax on a sentence.

A reader attends to phrases. Fusedmax puts one weight on a run of words, here "two million homes".
Oscarmax puts one weight on words of similar score wherever they stand: "storm" and "power" share
one, the three words of the phrase another. An outline is a run of equal weights, a letter marks
runs apart that have the same weight, and an empty cell is a weight of exactly zero.
"""

import torch
from matplotlib.figure import Figure

import fenchel
from fenchel import plots

WORDS = [
    "the",
    "storm",
    "has",
    "cut",
    "power",
    "to",
    "more",
    "than",
    "two",
    "million",
    "homes",
    "along",
    "the",
    "coast",
]
SCORES = [0.1, 0.85, 0.1, 0.7, 0.9, 0.2, 0.4, 0.4, 1.1, 1.16, 1.05, 0.0, 0.05, 0.3]


def picture() -> Figure:
    scores = torch.tensor(SCORES)
    rows = {
        "softmax": fenchel.softmax(scores),
        "sparsemax": fenchel.sparsemax(scores),
        "fusedmax": fenchel.fusedmax(scores, lam=0.1),
        "oscarmax": fenchel.oscarmax(scores, lam=0.06),
    }
    return plots.plot_attention(torch.stack(list(rows.values())), WORDS, list(rows))


if __name__ == "__main__":
    picture().savefig("fused_sentence.svg")
