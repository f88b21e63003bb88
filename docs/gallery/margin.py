"""A loss that is exactly zero.

The cross-entropy is never satisfied: it pushes a right answer further right forever. The loss of
a sparse mapping ends at a margin, and from there an example costs nothing and moves nothing.
"""

import torch
from matplotlib.figure import Figure

import fenchel


def picture() -> Figure:
    lead = torch.linspace(-3, 4, 281)
    scores = torch.stack([lead, torch.zeros_like(lead)], -1).requires_grad_()
    target = torch.zeros(len(lead), dtype=torch.long)
    names = {"softmax (cross-entropy)": 1.0, "entmax 1.25": 1.25, "entmax 1.5": 1.5}
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for index, (name, alpha) in enumerate({**names, "sparsemax": 2.0}.items()):
        mapping = fenchel.Entmax(alpha)
        loss = mapping.loss(scores, target, reduction="none")
        (slope,) = torch.autograd.grad(loss.sum(), scores)
        left.plot(lead, loss.detach(), color=f"C{index}", label=name)
        right.plot(lead, slope[:, 0].abs(), color=f"C{index}")
        if alpha > 1:
            left.plot(1 / (alpha - 1), 0, marker="o", color=f"C{index}", clip_on=False)
    left.set(xlabel="lead of the right class", ylim=(0, 3))
    left.set_title("loss; dots where it ends", loc="left", fontsize=10)
    left.legend(fontsize=9)
    right.set(xlabel="lead of the right class", ylim=(0, 1.05))
    right.set_title("size of its gradient", loc="left", fontsize=10)
    return figure


if __name__ == "__main__":
    picture().savefig("margin.svg")
