"""The classifier, the inference network and the generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fenchel.latent import embed

PIXELS, CLASSES = 784, 10


class SemisupervisedVae(nn.Module):
    """q(y | x), q(h | x, y) and p(x | h, y), for a class y and a Gaussian h.

    Args:
        hidden: the width of the inference network and of the generator.
        gaussian: the dimensions of h.
    """

    def __init__(self, hidden: int = 128, gaussian: int = 8) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (PIXELS, 256, 256):
            layers += [nn.Linear(width, 256), nn.ReLU()]
        self.classifier = nn.Sequential(*layers, nn.Linear(256, CLASSES))
        self.seen = nn.Linear(PIXELS, hidden)
        self.class_seen = nn.Parameter(torch.randn(CLASSES, hidden) * 0.1)
        self.moments = nn.Linear(hidden, 2 * gaussian)
        self.drawn = nn.Linear(gaussian, hidden)
        self.class_drawn = nn.Parameter(torch.randn(CLASSES, hidden) * 0.1)
        self.pixels = nn.Linear(hidden, PIXELS)

    def loss(self, x: Tensor, item: Tensor, y: Tensor) -> Tensor:
        """−log p(x | h, y) + KL(q(h | x, y) ‖ N(0, 1)) of pairs, with one sample of h each.

        Args:
            x: images (B, 784).
            item, y: which image (N,), and its class (N,), or weights of classes (N, 10).
        """
        seen = self.seen(x)[item] + embed(y, self.class_seen)  # once per image, not per pair
        mean, spread = self.moments(seen.relu()).chunk(2, -1)
        h = mean + torch.randn_like(mean) * (spread / 2).exp()
        logits = self.pixels((self.drawn(h) + embed(y, self.class_drawn)).relu())
        kl = (mean.square() + spread.exp() - 1 - spread).sum(-1) / 2
        return binary_cross_entropy_with_logits(logits, x[item], reduction="none").sum(-1) + kl
