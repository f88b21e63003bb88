"""Latent structures whose members can be listed, with closed forms of their distributions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import exact
from fenchel import Bits, Budget, Custom, DependencyTree, Matching, Sequence
from fenchel.structures import AbstractStructure

SIGMAS = 5.0
TWO = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]]).double()


def best_of_two(scores: Tensor) -> Tensor:
    return TWO.to(scores)[(scores @ TWO.to(scores).T).argmax(-1)]


CUSTOM = Custom((3,), best_of_two, batched=True)
"""A structure of the two members `TWO`."""
TRACTABLE = [
    Sequence(3, 2),
    DependencyTree(3),
    DependencyTree(4, projective=True),
    Budget(4, 2),
    Budget(4, 3, exact=True),
    Bits(3),
]
"""Structures with exact samples and probabilities."""
TWO_MEMBERS = [Matching(2, 2), CUSTOM]


def assert_mean(samples: Tensor, ground_truth: Tensor) -> None:
    """The mean of samples (n, …) is the ground truth, within a few standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - ground_truth).abs() <= SIGMAS * error + 1e-10).all()


@dataclass
class Members:
    """All members (K, *shape) of a structure, scores, and a loss with a parameter of its own."""

    structure: AbstractStructure
    members: Tensor
    scores: Tensor
    weight: Tensor

    @classmethod
    def of(cls, structure: AbstractStructure) -> Members:
        members = TWO if structure is CUSTOM else exact.members(structure).double()
        scores = (torch.randn(structure.shape).double() / 2).requires_grad_()
        weight = torch.randn(*structure.shape, 2).double().requires_grad_()
        return cls(structure, members, scores, weight)

    def loss(self, item: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor:
        """Of members or points (N, *shape), with weights (N, *shape, 2) of each pair or one."""
        weight = self.weight if weight is None else weight[item]
        each = (z.unsqueeze(-1) * weight).flatten(1, -2).sum(1)
        return (each - 0.3).square().sum(-1)

    def table(self) -> Tensor:
        """The losses (K) of all members."""
        return self.loss(torch.arange(len(self.members)), self.members)

    def totals(self, scores: Tensor | None = None) -> Tensor:
        """The scores (K) of all members."""
        theta = self.scores if scores is None else scores
        return (self.members * theta).flatten(1).sum(1)

    def perturbed(self, sigma: float, scores: Tensor | None = None) -> Tensor:
        """The probabilities (2) of two members under perturb-and-MAP with Gaussian noise."""
        assert len(self.members) == 2
        a, b = self.totals(scores)
        distance = (self.members[0] - self.members[1]).norm()
        p = torch.special.ndtr((a - b) / (sigma * distance))
        return torch.stack([p, 1 - p])

    def copies(self, n: int) -> tuple[Tensor, Tensor]:
        """Scores and weights of n items, for as many gradients."""
        pair = self.scores, self.weight
        scores, weight = (x.detach().expand(n, *x.shape).clone().requires_grad_() for x in pair)
        return scores, weight
