"""The distribution p(z) ∝ exp⟨θ, z⟩ over the members of a structure."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..structures._budget import Budget
from ..structures._coded import CodedStructure
from ..structures._gibbs import entropy, k_best, sample
from ..structures._gibbs._scores import center
from ..structures._matching import Matching
from ..structures._perturbed import Perturbed
from ..structures._problem import ExtraScores
from ..structures._sequence import Sequence
from ..structures._tree import DependencyTree
from ._distributions import Drawn, HasProbabilities
from ._divergence import log_num_matchings

SAMPLED = (Budget, Sequence, DependencyTree)
"""The structures of which there are exact samples, besides `Choice` and `Bits`."""


class Gibbs(HasProbabilities):
    """p(z) ∝ exp⟨θ, z⟩; outcomes are the indicators (N, *shape).

    Args:
        structure: one of `SAMPLED`.
        scores, extra_scores, lengths, mask: as for `fenchel.map_inference`.
    """

    def __init__(
        self,
        structure: CodedStructure,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> None:
        self.structure = structure
        self.problem = structure.problem(scores, extra_scores, lengths, mask)
        self._scores = scores
        self._given = {"extra_scores": extra_scores, "lengths": lengths, "mask": mask}
        extra = self.problem.extra_scores
        self._extra_scores = None if extra is None else extra.double()

    def _flatten_batch(self, values: Tensor) -> Tensor:
        return values.reshape(len(self.problem.scores), *values.shape[len(self.problem.batch) :])

    @cached_property
    def _centered(self) -> Tensor:
        """Scores in float64 that give the same probabilities, the largest of a position zero."""
        scores = self.problem.scores.double()
        return center(self.structure, scores, scores)

    @cached_property
    def log_z(self) -> Tensor:
        """The log-partition (B) of the centered scores."""
        lengths = self.problem.lengths
        arguments = self.structure.arguments(self._centered, self._extra_scores, lengths)
        return self.structure.log_partition(*arguments)

    @property
    def mass(self) -> Tensor:
        log_z = self.log_z.detach()
        return torch.where(log_z.isnan(), torch.nan, (log_z > -torch.inf).double())

    @property
    def marginals(self) -> Tensor:
        problem = self.problem
        arguments = problem.scores, problem.extra_scores, problem.lengths
        return self.structure.marginals(*self.structure.arguments(*arguments))[0]

    @property
    def entropy(self) -> Tensor:
        return self._flatten_batch(entropy(self.structure, self._scores, **self._given))

    def sample(self, samples: int) -> Drawn:
        codes = sample(self.structure, self._scores, samples, **self._given)
        z = self._indicator(self._flatten_batch(codes).transpose(0, 1).flatten(0, 1))
        return Drawn(z, z)

    def log_prob(self, item: Tensor, point: Tensor) -> Tensor:
        scores, extra = self._centered[item], self._extra_scores
        if extra is not None and len(extra) > 1:
            extra = extra[item]
        value = self.structure.score(scores, extra, self.structure.codes_of(point))
        log_z = self.log_z[item]
        log_z = torch.where(log_z == -torch.inf, 0.0, log_z)
        log_p = value - log_z
        log_p = log_p - log_p.detach().clamp(min=0.0)  # where the sums are rounded
        return log_p.to(self.problem.scores.dtype)

    def mode(self) -> Tensor:
        return self.structure.best_vertices(self.problem).indicator

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            best = k_best(self.structure, self._scores, k, **self._given)
        value = self._flatten_batch(best.value)
        return self._indicator(self._flatten_batch(best.codes)), value > -torch.inf

    def _indicator(self, codes: Tensor) -> Tensor:
        return self.structure.indicator(codes, self.problem.scores.dtype)


class UniformMatching(Gibbs):
    """All matchings of each item, with the same probability."""

    structure: Matching

    def __init__(self, structure: Matching, scores: Tensor, lengths: Tensor | None) -> None:
        super().__init__(structure, torch.zeros_like(scores), lengths=lengths)

    @cached_property
    def log_z(self) -> Tensor:
        return log_num_matchings(self.structure, self.problem.scores, self.problem.lengths)

    @property
    def entropy(self) -> Tensor:
        return self.log_z.to(self.problem.scores.dtype)

    def sample(self, samples: int) -> Drawn:
        """By symmetry the best matching of independent noise is any, with the same probability."""
        codes = Perturbed(self.structure).sample(self._scores, samples, **self._given)
        z = self._indicator(self._flatten_batch(codes).transpose(0, 1).flatten(0, 1))
        return Drawn(z, z)
