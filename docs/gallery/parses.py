"""Three parses of one sentence.

An ambiguous sentence has several readings. Marginals would spread over all 3,876 projective
trees of these seven words, and the best tree hides that there is a choice. SparseMAP names the few
that matter.
"""

import torch
from matplotlib.figure import Figure

import fenchel
from fenchel import plots

WORDS = ["she", "saw", "the", "man", "with", "binoculars", "yesterday"]
ARCS = {("saw", "she"): 3.0, ("saw", "man"): 2.6, ("man", "the"): 3.0, ("with", "binoculars"): 2.8}
ARCS |= {("saw", "with"): 1.5, ("man", "with"): 1.2, ("saw", "yesterday"): 1.8}
ARCS |= {("binoculars", "yesterday"): 1.0, ("saw", "saw"): 2.5}


def picture() -> Figure:
    n = len(WORDS)
    scores = torch.zeros(n, n)
    for (head, word), score in ARCS.items():
        scores[WORDS.index(head), WORDS.index(word)] = score
    posterior = fenchel.sparsemap(fenchel.DependencyTree(n, projective=True), scores)
    return plots.plot_parses(WORDS, posterior.codes, posterior.weights)


if __name__ == "__main__":
    picture().savefig("parses.svg")
