"""A latent tree.

No one labels the tree; only what it does is seen, here what each word's head is like. The loss is
an expectation over all 625 trees of five words, and with SparseMAP it is a short sum that is
exact: no samples, no noise, and ever fewer calls as the parser becomes sure.
"""

import torch
from matplotlib.figure import Figure

import fenchel
from fenchel.latent import marginalize
from fenchel.structures import sample


def picture() -> Figure:
    torch.manual_seed(0)
    structure = fenchel.DependencyTree(5)
    heads = sample(structure, torch.zeros(128, 5, 5), 1).reshape(128, 5)
    words = torch.randn(128, 5, 8)
    seen = torch.take_along_dim(words, heads[..., None], 1)
    hints = seen @ torch.linalg.qr(torch.randn(8, 8)).Q  # what a parser must learn to read
    truth = torch.zeros(128, 5, 5).scatter(1, heads[:, None], 1.0)
    parser = (0.1 * torch.randn(8, 8)).requires_grad_()
    optimizer = torch.optim.Adam([parser], lr=0.02)

    def loss(item: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        guess = torch.einsum("nhm,nhd->nmd", z, words[item])
        return (guess - seen[item]).square().sum((1, 2))

    right, calls = [], []
    for _ in range(60):
        arcs = torch.einsum("bhd,de,bme->bhm", words, parser, hints)
        outcome = marginalize(arcs, loss, structure)
        optimizer.zero_grad()
        outcome.value.mean().backward()
        optimizer.step()
        right.append(float((outcome.marginals.detach() * truth).sum() / heads.numel()))
        calls.append(float(outcome.calls.float().mean()))
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    left, other = figure.subplots(1, 2)
    left.plot(right, color="C2", linewidth=2)
    left.set(xlabel="step", ylim=(0, 1.03))
    left.set_title("weight on the true arcs", loc="left", fontsize=10)
    other.plot(calls, color="C5", linewidth=2)
    other.set(xlabel="step", ylim=(0, None))
    other.set_title("trees per sentence that the loss is called on", loc="left", fontsize=10)
    return figure


if __name__ == "__main__":
    picture().savefig("latent_tree.svg")
