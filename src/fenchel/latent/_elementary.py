"""The elementary distributions: one of K outcomes, and independent bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad

from ..mappings import AbstractMapping
from ..mappings._softmax import Softmax
from ..structures._problem import Problem
from ._distributions import Drawn, HasProbabilities, HasRelaxation, Rest, entropy, straight_through
from ._k_best import k_best


def safe_log(p: Tensor) -> Tensor:
    """log p; where p is zero it is −inf and has no gradient."""
    return torch.where(p == 0, -torch.inf, torch.where(p == 0, 1.0, p).log())


def log_softmax(scores: Tensor) -> Tensor:
    """log p of p ∝ exp(scores), (..., K); −inf without a gradient where all scores are −inf. Scores
    of +inf share the probability."""
    infinite = scores.detach() == torch.inf
    certain = torch.where(infinite, 0.0, -torch.inf).to(scores.dtype)
    scores = torch.where(infinite.any(-1, keepdim=True) & ~scores.isnan(), certain, scores)
    empty = (scores.detach() == -torch.inf).all(-1, keepdim=True)
    return torch.where(empty, -torch.inf, torch.where(empty, 0.0, scores).log_softmax(-1))


class Categorical(HasProbabilities, HasRelaxation):
    """One of K outcomes, by its index, with the probabilities that a mapping gives.

    Args:
        problem: of a `Choice`, with scores (B, K).
        mapping: what gives the probabilities.
        scores: its scores as the user gave them, (..., K).
    """

    def __init__(self, problem: Problem, mapping: AbstractMapping, scores: Tensor) -> None:
        self.problem = problem
        if isinstance(mapping, Softmax):
            self.log_probs = log_softmax(scores / mapping.gamma).reshape(problem.scores.shape)
            self.probabilities = self.log_probs.exp()
        else:
            self.probabilities = mapping(scores).reshape(problem.scores.shape)
            self.log_probs = safe_log(self.probabilities)

    @property
    def mass(self) -> Tensor:
        return self.probabilities.detach().sum(1)

    @property
    def marginals(self) -> Tensor:
        return self.probabilities

    @property
    def entropy(self) -> Tensor:
        return entropy(self.probabilities)

    def sample(self, samples: int) -> Drawn:
        p = self.probabilities.detach().repeat(samples, 1)
        z = (p / torch.empty_like(p).exponential_()).argmax(-1)
        return Drawn(z, z)

    def log_prob(self, item: Tensor, point: Tensor) -> Tensor:
        return self.log_probs[item, point]

    def mode(self) -> Tensor:
        return self.probabilities.argmax(-1)

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        p = self.probabilities.detach()
        top = p.topk(min(k, p.shape[-1]), dim=-1)
        return top.indices, top.values > 0

    def sample_rest(self, top: Tensor, exists: Tensor) -> Rest:
        p = self.probabilities.detach().scatter(1, top, 0.0)
        mass = p.sum(-1)
        return Rest((p / torch.empty_like(p).exponential_()).argmax(-1), mass, mass == 0)

    def relaxed_sample(self, samples: int, temperature: float, hard: bool) -> Tensor:
        logits = self.log_probs.repeat(samples, 1)
        soft = ((logits - torch.empty_like(logits).exponential_().log()) / temperature).softmax(-1)
        return straight_through(soft, self.indicator(soft.argmax(-1))) if hard else soft

    def indicator(self, z: Tensor) -> Tensor:
        return one_hot(z, self.probabilities.shape[-1]).to(self.probabilities.dtype)


class Bernoulli(HasProbabilities, HasRelaxation):
    """Independent bits, p(zᵢ = 1) = 1/(1 + exp(−θᵢ)); outcomes are zeros and ones, (N, D)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def mass(self) -> Tensor:
        scores = self.problem.scores.detach()
        return torch.where(scores.isnan().any(1), torch.nan, torch.ones_like(scores[:, 0]))

    @property
    def marginals(self) -> Tensor:
        return self.problem.scores.sigmoid()

    @property
    def entropy(self) -> Tensor:
        certain = self.problem.scores.isinf()
        scores = torch.where(certain, 0.0, self.problem.scores)
        p = scores.sigmoid()
        bits = -(p * logsigmoid(scores) + (1 - p) * logsigmoid(-scores))
        return torch.where(certain, 0.0, bits).sum(-1)

    def sample(self, samples: int) -> Drawn:
        z = torch.bernoulli(self.marginals.detach().nan_to_num().repeat(samples, 1))
        return Drawn(z, z)

    def log_prob(self, item: Tensor, point: Tensor) -> Tensor:
        scores = self.problem.scores[item]
        return torch.where(point > 0, logsigmoid(scores), logsigmoid(-scores)).sum(-1)

    def mode(self) -> Tensor:
        return (self.problem.scores > 0).to(self.problem.scores.dtype)

    def k_best(self, k: int) -> tuple[Tensor, Tensor]:
        scores = self.problem.scores.detach().unsqueeze(1)
        top = k_best(scores.squeeze(1), k)
        excluded = (top & (scores == -torch.inf)) | (~top & (scores == torch.inf))
        missing = k - top.shape[1]  # where k is larger than 2^d
        exists = pad(~excluded.any(-1), (0, missing))
        return pad(top.to(scores.dtype), (0, 0, 0, missing)), exists

    def relaxed_sample(self, samples: int, temperature: float, hard: bool) -> Tensor:
        scores = self.problem.scores.repeat(samples, 1)
        noise = torch.rand_like(scores).clamp(min=torch.finfo(scores.dtype).tiny)
        soft = ((scores + noise.log() - (-noise).log1p()) / temperature).sigmoid()
        return straight_through(soft, (soft > 0.5).to(soft.dtype)) if hard else soft
