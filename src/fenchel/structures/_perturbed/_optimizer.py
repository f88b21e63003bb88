"""A structure whose best member is found for scores with noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import _checks
from ..._transforms import is_transformed
from .._base import AbstractStructure
from .._checks import check_structure
from .._gibbs._scores import chunks
from .._problem import ExtraScores, Problem
from ._autograd import MeanMaximum, MeanVertex
from ._noise import KINDS, AbstractNoise
from ._rows import Best, Rows


@dataclass(frozen=True, eq=False)
class Perturbed:
    """MAP inference of scores with noise: soft marginals of any structure that has a MAP oracle.

    For noise Z, of independent numbers of mean zero,

        F(θ) = E max over y of ⟨θ + σZ, y⟩,   ∇F(θ) = E argmax over y of ⟨θ + σZ, y⟩.

    F is convex and, where σ > 0, smooth: it is a log-partition of its own, for structures that have
    none too, and ∇F are its marginals. Both are estimated by the same samples. The best structures
    of θ + σZ are samples of a distribution, called perturb-and-MAP. A `Choice` with Gumbel noise
    has F(θ) = σ log Σ exp(θ/σ), and its distribution is softmax(θ/σ).

    Each score has its own noise, also each extra score that is given. A transition that positions
    share has one noise for all of them; instances that share it have their own.

    Args:
        structure: any structure; a `FactorGraph` has marginals of its relaxation.
        sigma: σ > 0. The smaller, the closer to MAP inference, and the noisier the derivatives of
            the marginals.
        samples: how many estimate an expectation.
        noise: "gaussian", or "gumbel" for Gumbel noise less its mean.
        generator: where random numbers come from; torch's own if None. Numbers are drawn on its
            device, so the same seed gives the same noise.

    Called with scores it gives the marginals, `max` gives F, and `sample` structures. The loss
    F(θ) − ⟨θ, y⟩ is `structured_loss(perturbed, scores, target)`.

    >>> from fenchel import Matching
    >>> generator = torch.Generator().manual_seed(0)
    >>> perturbed = Perturbed(Matching(2, 2), sigma=0.5, samples=1000, generator=generator)
    >>> perturbed(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.8510, 0.1490],
            [0.1490, 0.8510]])

    Each sample is one MAP inference. The samples of a batch are solved together, or in as many
    pieces as a bound on their memory needs.

    References: berthet2020learning, papandreou2011perturb.
    """

    structure: AbstractStructure
    sigma: float = 1.0
    samples: int = 100
    noise: str = "gaussian"
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        check_structure(self.structure, AbstractStructure)
        _checks.check_number("sigma", self.sigma, above=0)
        _checks.check_size("samples", self.samples)
        _checks.check_choice("noise", self.noise, tuple(KINDS))
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            found = _checks.type_name(self.generator)
            raise TypeError(f"`generator` must be a torch.Generator, got {found}.")

    def __call__(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        *,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Any:
        """The marginals ∇F: the mean of the best structures of perturbed scores.

        Their derivative in the scores is E[y s(Z)ᵀ]/σ, where s = −∇ log ρ for the density ρ of the
        noise, Z itself if it is Gaussian. It is estimated by the same samples, as the covariance of
        y and s(Z), without bias for two samples or more, and kept for backward as twice `samples`
        numbers for each score. Forward mode has the same estimate. It has no derivative itself.

        Args:
            scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
        Returns:
            A tensor like `scores`; with extra scores, a pair of it and of the mean number of uses
            of each of these, in the form in which they were given, as `fenchel.marginals`.
        """
        problem = self.structure.problem(scores, extra_scores, lengths, mask)
        found, extra = problem.restore(*self.mean(problem))
        return found if extra_scores is None else (found, extra)

    def max(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        *,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """F(θ), the mean of the best scores: (...), with the gradient ∇F by the same samples.

        Args:
            scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
        """
        problem = self.structure.problem(scores, extra_scores, lengths, mask)
        return problem.restore_batch(self.maximum(problem))

    def sample(
        self,
        scores: Tensor,
        n: int,
        extra_scores: ExtraScores | None = None,
        *,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Independent samples: the best structures of n perturbations of the scores.

        Args:
            scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
            n: how many samples of each instance.
        Returns:
            Codes (..., n, positions) in int64, as those of `fenchel.structures.sample`; for a
            structure without codes indicators (..., n, *shape).
        """
        _checks.check_size("n", n)
        with torch.no_grad():
            problem = self.structure.problem(scores, extra_scores, lengths, mask)
            rows = Rows(problem)
            found = torch.cat([best.codes for _, best in self.solve(rows, n)])
        return problem.restore_batch(found.transpose(0, 1))

    @property
    def density(self) -> AbstractNoise:
        """That of the noise, from which it is drawn."""
        return KINDS[self.noise]

    def mean(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """The marginals (B, *shape) and those of the extra scores, (B, …), in float64."""
        rows = Rows(problem)
        if not is_transformed() and not (torch.is_grad_enabled() and rows.theta.requires_grad):
            return rows.split(self._mean(rows)[0])
        pairs = [(self._score(rows, z), best.y) for z, best in self.solve(rows, self.samples)]
        score, y = (torch.cat(column) for column in zip(*pairs, strict=True))
        return rows.split(MeanVertex.apply(rows.theta, y, score))  # type: ignore[arg-type]

    def maximum(self, problem: Problem) -> Tensor:
        """F (B), in float64."""
        rows = Rows(problem)
        y, value = self._mean(rows)
        return MeanMaximum.apply(rows.theta, value, y)  # type: ignore[return-value]

    def perturb(self, rows: Rows, n: int) -> Tensor:
        """n noises of each instance, (n, B, D); zero for extra scores that are not given."""
        device = rows.theta.device if self.generator is None else self.generator.device
        noise = self.density.draw((n, *rows.theta.shape), self.generator, device)
        return noise.to(rows.theta.device) * rows.is_given

    def solve(self, rows: Rows, n: int) -> Iterator[tuple[Tensor, Best]]:
        """n noises (S, B, D), some at a time, and the best structures of the perturbed scores."""
        for some in chunks(torch.arange(n), max(1, rows.theta.numel())):
            z = self.perturb(rows, len(some))
            yield z, rows.solve(rows.theta.detach() + self.sigma * z)

    def _mean(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The means of best structures, (B, D), and of their scores, (B)."""
        y, value = torch.zeros_like(rows.theta.detach()), 0.0
        for _, best in self.solve(rows, self.samples):
            y, value = y + best.y.sum(0), value + best.value.sum(0)
        return y / self.samples, value / self.samples  # type: ignore[return-value]

    def _score(self, rows: Rows, z: Tensor) -> Tensor:
        """The derivative of −log ρ by the scores, (S, B, D), zero where no structure can use
        them."""
        return torch.where(rows.is_used, self.density.score(z) / self.sigma, 0.0)
