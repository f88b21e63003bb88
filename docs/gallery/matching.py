"""A matching between two sentences.

Attention aligns each word by itself, so two words can claim the same partner. A matching cannot:
SparseMAP gives each word its own, with a few alternatives where the model is unsure.
"""

import torch
from matplotlib.figure import Figure

import fenchel
from fenchel import plots

FIRST = ["a", "young", "girl", "plays", "the", "violin", "outdoors"]
SECOND = ["outside", "a", "little", "girl", "is", "playing", "music"]
ALIKE = {("a", "a"): 2, ("young", "little"): 1.6, ("girl", "girl"): 2.4, ("plays", "playing"): 1.8}
ALIKE |= {("violin", "music"): 1.5, ("violin", "playing"): 1.2, ("outdoors", "outside"): 1.8}
ALIKE |= {("the", "a"): 1.4, ("the", "is"): 0.6, ("young", "girl"): 1.3, ("plays", "is"): 0.7}


def picture() -> Figure:
    scores = torch.tensor([[float(ALIKE.get((a, b), 0)) for b in SECOND] for a in FIRST])
    posterior = fenchel.sparsemap(fenchel.Matching(7, 7), scores)
    size = int(posterior.support_size)
    return plots.plot_alignments(
        [
            plots.Alignment("softmax", fenchel.softmax(scores), FIRST, SECOND),
            plots.Alignment("sparsemax", fenchel.sparsemax(scores), FIRST, SECOND),
            plots.Alignment(
                f"{size} matchings",
                posterior.marginals,
                FIRST,
                SECOND,
                posterior.codes,
                posterior.weights,
            ),
        ]
    )


if __name__ == "__main__":
    picture().savefig("matching.svg")
