"""The estimator that sums over the largest probabilities and samples the rest."""

from __future__ import annotations

import torch

from ... import _checks
from ...mappings import AbstractMapping
from ...mappings._checks import check_mapping
from .._distributions import AbstractSampled
from .._expectation import Expectation, Loss
from ._base import AbstractSampler, repeat_items


class SumAndSample(AbstractSampler):
    """An unbiased estimate: the sum over the k most probable categories, and one sample of the
    rest R, weighted by p(R).

    Its variance is at most p(R) times that of the score-function estimator.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default.
        k: how many categories to sum over.

    >>> from fenchel.latent import marginalize
    >>> marginalize(torch.zeros(2, 5), lambda item, z: z.float(), SumAndSample(k=2)).calls
    tensor([3, 3])

    References: liu2019rao.
    """

    def __init__(self, over: AbstractMapping | str | None = None, k: int = 1) -> None:
        if over is not None:
            check_mapping(self.resolve(over), AbstractMapping)
        super().__init__(over)
        _checks.check_size("k", k)
        self.k = k

    def estimate_by_samples(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        p = distribution.marginals
        k = min(self.k, p.shape[-1])
        top = p.detach().topk(k, dim=-1).indices
        rest = p.detach().scatter(1, top, 0.0)
        mass = rest.sum(-1)
        drawn = (rest / torch.empty_like(rest).exponential_()).argmax(-1)
        item = repeat_items(distribution)
        left = (mass > 0).nonzero().squeeze(-1)  # items whose rest can be sampled
        pairs = torch.cat([item.repeat_interleave(k), left])
        z = torch.cat([top.flatten(), drawn[left]])
        losses = loss(pairs, z)
        known, sampled = losses[: top.numel()].reshape(top.shape), losses[top.numel() :]
        log_p = distribution.log_prob(left, z[top.numel() :])
        surrogate = sampled + sampled.detach() * (log_p - log_p.detach())
        value = (p.gather(1, top) * known).sum(-1)
        value = value.index_add(0, left, (mass[left] * surrogate).to(value.dtype))
        calls = torch.full_like(item, k).index_add(0, left, torch.ones_like(left))
        return Expectation(distribution, value, calls, mass == 0)

    def extra_repr(self) -> str:
        return f"over={self.over}, k={self.k}"
