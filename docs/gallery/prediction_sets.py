"""Prediction sets with guaranteed coverage.

"It is an 8, or perhaps a 3" is more honest than "8, 62 %". The support of entmax is such a set;
calibrated on data that the model has not seen, it holds the right class as often as you ask.
"""

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fenchel
from fenchel.integrations.sklearn import FenchelYoungClassifier


def picture() -> Figure:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / 16, labels[order]
    model = FenchelYoungClassifier(fenchel.Entmax(1.5)).fit(images[:80], labels[:80])
    wanted = np.linspace(0.85, 0.99, 8)
    found, sizes = [], []
    for coverage in wanted:
        model.calibrate(images[80:880], labels[80:880], coverage=float(coverage))
        sets = model.predict_set(images[880:])
        found.append(sets[np.arange(len(sets)), labels[880:]].mean())
        sizes.append(sets.sum(1).mean())
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(wanted, wanted, linestyle=":", color="C0", label="asked for")
    left.plot(wanted, found, marker="o", color="C2", label="on new digits")
    left.set(xlabel="coverage asked for", title="right class in the set")
    left.legend()
    right.plot(wanted, sizes, marker="o", color="C5")
    right.set(xlabel="coverage asked for", title="classes in a set, mean", ylim=(0, None))
    return figure


if __name__ == "__main__":
    picture().savefig("prediction_sets.svg")
