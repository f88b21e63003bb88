"""Fusedmax on a time series.

A pooled series should say when something happened, not which sample was noisiest. Fusedmax gives
neighbours one common weight, so attention becomes an interval that one can read off.
"""

import torch
from matplotlib.figure import Figure

import fenchel


def picture() -> Figure:
    torch.manual_seed(0)
    time = torch.arange(120)
    event = ((time > 45) & (time < 75)).float()
    scores = 0.05 * event + 0.02 * torch.randn(120)
    weights = {
        "softmax": fenchel.softmax(scores),
        "sparsemax": fenchel.sparsemax(scores),
        "fusedmax": fenchel.fusedmax(scores, lam=0.05),
    }
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    panels[0].plot(time, scores, color="C0", linewidth=1)
    panels[0].set_title("scores: noise, and an event between 45 and 75", loc="left", fontsize=10)
    for index, (axes, (name, y)) in enumerate(zip(panels[1:], weights.items(), strict=True), 1):
        axes.fill_between(time, y, step="mid", color=f"C{index}", alpha=0.85, linewidth=0)
        levels = len(y[y > 0].unique())
        title = f"{name}: {int((y > 0).sum())} samples, {levels} different weights"
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(ylim=(0, None), yticks=[])
    panels[-1].set_xlabel("time")
    return figure


if __name__ == "__main__":
    picture().savefig("fused_series.svg")
