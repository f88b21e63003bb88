"""Heads that learn their α.

How sparse should attention be? Different heads want different answers. α is a tensor with a
gradient: here four heads start at 1.5, see only what the weights should have done, and find the
four exponents by themselves.
"""

import torch
from matplotlib.figure import Figure

import fenchel

TRUTH = torch.tensor([1.05, 1.3, 1.6, 1.95])


def picture() -> Figure:
    torch.manual_seed(0)
    scores = torch.randn(4, 64, 32)
    target = fenchel.entmax(scores, alpha=TRUTH[:, None, None])
    raw = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([raw], lr=0.1)
    path = []
    for _ in range(80):
        alpha = 1 + raw.sigmoid()  # between softmax and sparsemax
        path.append(alpha.tolist())
        optimizer.zero_grad()
        y = fenchel.entmax(scores, alpha=alpha[:, None, None])
        (y - target).square().sum().backward()
        optimizer.step()
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for head, line in enumerate(zip(*path, strict=True)):
        axes.plot(line, color=f"C{head + 1}", linewidth=2)
        axes.plot([0, 79], [TRUTH[head]] * 2, color=f"C{head + 1}", linestyle=":", linewidth=1)
        zeros = (target[head] == 0).float().mean()
        axes.text(81, line[-1], f"head {head + 1}: {zeros:.0%} zeros", va="center", fontsize=9)
    axes.set(xlabel="step", ylabel="α", xlim=(0, 105), ylim=(0.98, 2.05))
    axes.set_xticks(range(0, 81, 20))
    axes.set_title("α of each head; dotted what it should find", loc="left", fontsize=10)
    return figure


if __name__ == "__main__":
    picture().savefig("learned_alpha.svg")
