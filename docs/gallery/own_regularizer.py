"""A regularizer of your own.

You know something about your options that no library does: here, that some are near copies. Write
it as Ω, any smooth and strongly convex function, and `General` makes it a mapping with exact
gradients. Five near copies no longer crowd out the rest.
"""

import torch
from matplotlib.figure import Figure

import fenchel

GROUPS = torch.tensor([0, 0, 0, 0, 0, 1, 2, 3])
SCORES = torch.tensor([1.0, 0.98, 0.96, 0.94, 0.92, 0.85, 0.8, 0.2])


def picture() -> Figure:
    alike = (GROUPS[:, None] == GROUPS).double()

    def omega(y: torch.Tensor) -> torch.Tensor:
        return 0.5 * (y * y).sum(-1) + 1.5 * ((y @ alike) * y).sum(-1)

    rows = {
        "sparsemax: the copies take most": fenchel.sparsemax(SCORES),
        "Ω(y) = ½‖y‖² + 1.5 yᵀKy: copies share": fenchel.General(omega)(SCORES),
    }
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, (name, y) in zip(panels, rows.items(), strict=True):
        colours = [f"C{int(group) + 1}" for group in GROUPS]
        bars = axes.bar(range(8), y.tolist(), color=colours)
        axes.bar_label(bars, [f"{p:.2f}" if p > 0 else "0" for p in y.tolist()], fontsize=8)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set(yticks=[], ylim=(0, 0.5))
    panels[-1].set_xticks(range(8), ["copy 1", "2", "3", "4", "5", "b", "c", "d"])
    return figure


if __name__ == "__main__":
    picture().savefig("own_regularizer.svg")
