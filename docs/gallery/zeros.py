"""Weights that become exactly zero.

Softmax never says no: of these twelve options, the poor ones keep weight that the good ones lose.
Sparsemax and entmax give it back, and what has no weight need not be computed.
"""

import torch
from matplotlib.figure import Figure

import fenchel


def picture() -> Figure:
    scores = torch.tensor([2.2, 1.9, 1.2, 0.8, 0.3, 0.1, -0.2, -0.4, -0.7, -1.0, -1.3, -1.6])
    rows = {
        "softmax": fenchel.softmax(scores),
        "entmax, α = 1.5": fenchel.entmax(scores, alpha=1.5),
        "sparsemax": fenchel.sparsemax(scores),
    }
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, sharey=True)
    for index, (axes, (name, y)) in enumerate(zip(panels, rows.items(), strict=True)):
        bars = axes.bar(range(len(y)), y.tolist(), color=f"C{index}", width=0.75)
        axes.bar_label(bars, [f"{p:.2g}" if p > 0 else "0" for p in y.tolist()], fontsize=8)
        axes.set_title(f"{name}: {int((y > 0).sum())} of {len(y)}", loc="left", fontsize=10)
        axes.set(ylim=(0, 0.8), yticks=[])
        axes.spines["left"].set_visible(False)
    panels[-1].set_xticks(range(len(scores)), [f"{s:.1f}" for s in scores.tolist()])
    panels[-1].set_xlabel("scores")
    return figure


if __name__ == "__main__":
    picture().savefig("zeros.svg")
