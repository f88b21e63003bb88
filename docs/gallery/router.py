"""A sparse router for a mixture of experts.

With softmax every expert runs for every input, or a hard top-k cuts the gradient off. The router
here is entmax: experts of weight zero need not run, the choice is differentiable, and how many
experts an input gets is learnt.
"""

import torch
from matplotlib.figure import Figure

import fenchel


def picture() -> Figure:
    x = torch.linspace(-1, 1, 256)[:, None]
    y = (3 * x).sin() * (x > 0) + (x + 0.3).abs() * (x <= 0)
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, mapping in zip(panels, (fenchel.Softmax(), fenchel.Entmax(1.5)), strict=True):
        torch.manual_seed(3)
        experts = torch.nn.Linear(1, 5)
        router = torch.nn.Sequential(
            torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5)
        )
        weights = [*experts.parameters(), *router.parameters()]
        optimizer = torch.optim.Adam(weights, lr=0.02)
        p, loss = torch.empty(0), torch.empty(0)
        for _ in range(400):
            optimizer.zero_grad()
            p = mapping(router(x))
            loss = ((p * experts(x)).sum(-1, keepdim=True) - y).square().mean()
            loss.backward()
            optimizer.step()
        p = p.detach()
        axes.stackplot(x[:, 0], *p.T, colors=[f"C{k}" for k in range(1, 6)], alpha=0.9)
        runs = (p > 0).sum(-1).float().mean()
        title = f"{mapping.name}: {runs:.1f} of 5 experts run, error {loss.sqrt():.3f}"
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(ylim=(0, 1), ylabel="weight")
    panels[-1].set(xlabel="input", xlim=(-1, 1))
    return figure


if __name__ == "__main__":
    picture().savefig("router.svg")
