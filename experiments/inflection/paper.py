"""The paper's figures: accuracy on the test set, averaged over languages (its Table 1)."""

from __future__ import annotations

AVERAGE = {
    "high": {
        (1.0, 1.0): 93.15,
        (1.0, 1.5): 92.32,
        (1.0, 2.0): 90.98,
        (1.5, 1.0): 94.36,
        (1.5, 1.5): 94.44,
        (1.5, 2.0): 94.05,
        (2.0, 1.0): 94.59,
        (2.0, 1.5): 94.47,
        (2.0, 2.0): 94.32,
    },
    "medium": {
        (1.0, 1.0): 82.55,
        (1.0, 1.5): 83.20,
        (1.0, 2.0): 83.13,
        (1.5, 1.0): 84.88,
        (1.5, 1.5): 84.93,
        (1.5, 2.0): 84.93,
        (2.0, 1.0): 84.95,
        (2.0, 1.5): 85.03,
        (2.0, 2.0): 84.96,
    },
}
"""By setting, the means of three runs, by (output α, attention α)."""

ENSEMBLE = {
    "high": {
        (1.0, 1.0): 94.20,
        (1.0, 1.5): 93.50,
        (1.0, 2.0): 92.60,
        (1.5, 1.0): 94.96,
        (1.5, 1.5): 95.00,
        (1.5, 2.0): 94.74,
        (2.0, 1.0): 95.10,
        (2.0, 1.5): 95.01,
        (2.0, 2.0): 94.89,
    },
    "medium": {
        (1.0, 1.0): 85.68,
        (1.0, 1.5): 85.63,
        (1.0, 2.0): 85.65,
        (1.5, 1.0): 86.38,
        (1.5, 1.5): 86.55,
        (1.5, 2.0): 86.59,
        (2.0, 1.0): 86.41,
        (2.0, 1.5): 86.61,
        (2.0, 2.0): 86.47,
    },
}
"""The same of ensembles of those three runs."""

CERTAINTY = {"high": (81, 87), "medium": (66, 79)}
"""Of the best model, on the validation set: the shares with a single hypothesis, and certified
because the beam held all of the probability, in percent."""
