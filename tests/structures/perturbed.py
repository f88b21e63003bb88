"""Perturbed optimizers of small structures: by enumeration, and in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

import exact
from fenchel.structures import AbstractStructure, Perturbed
from fenchel.structures._perturbed._rows import Rows

SIGMAS = 5.0


def assert_mean(samples: Tensor, ground_truth: Tensor) -> None:
    """The mean of samples (n, …) is the ground truth, within a few standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - ground_truth).abs() <= SIGMAS * error + 1e-9).all()


def seeded(structure: AbstractStructure, **options: object) -> Perturbed:
    """With a generator of its own, of seed 0."""
    generator = torch.Generator().manual_seed(0)
    return Perturbed(structure, generator=generator, **options)  # type: ignore[arg-type]


def points(perturbed: Perturbed, scores: Tensor) -> Tensor:
    """The perturbed scores (S, B, *shape) of scores (B, *shape), from the generator's seed."""
    generator = perturbed.generator
    assert generator is not None
    generator.manual_seed(generator.initial_seed())
    noise = perturbed.perturb(Rows(perturbed.structure.problem(scores)), perturbed.samples)
    generator.manual_seed(generator.initial_seed())
    return scores + perturbed.sigma * noise.reshape(perturbed.samples, *scores.shape)


def best(structure: AbstractStructure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best members of scores (..., *shape), and their scores (...), of all of them."""
    members = exact.members(structure).to(scores)
    value, index = (scores.flatten(-len(structure.shape)) @ members.flatten(1).T).max(-1)
    return members[index], value


def maximum_of_two(theta: Tensor, first: Tensor, second: Tensor, sigma: float) -> Tensor:
    """E max of two members y and y′ for Gaussian noise, differentiable."""
    normal = torch.distributions.Normal(0.0, 1.0)
    a, b = (theta * first).sum(), (theta * second).sum()
    scale = sigma * (first - second).norm()
    d = (a - b) / scale
    return a * normal.cdf(d) + b * normal.cdf(-d) + scale * normal.log_prob(d).exp()


def derivatives(value: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient (D) and the Hessian (D, D) of a value."""
    (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
    rows = [torch.autograd.grad(g, theta, retain_graph=True)[0] for g in gradient.flatten()]
    return gradient.detach(), torch.stack(rows).reshape(theta.numel(), theta.numel())
