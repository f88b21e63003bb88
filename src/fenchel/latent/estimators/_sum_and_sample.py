"""The estimator that sums over the largest probabilities and samples the rest."""

from __future__ import annotations

import torch

from ... import _checks
from ...structures._perturbed import Perturbed
from .._checks import check_probabilities
from .._distributions import HasProbabilities, score_weight
from .._expectation import Expectation, Loss
from ._base import AbstractSampler, Over


class SumAndSample(AbstractSampler):
    """An unbiased estimate: the sum over the k most probable outcomes, and one sample of the
    rest R, weighted by p(R).

    For categories, its variance is at most p(R) times that of the score-function estimator. The
    rest of a structure is sampled by rejection: the first of 32 samples that is not among the k. If
    there is none, the rest counts as zero; the weight of the others makes up for it, and adds to
    the variance about p(R)/32 times the mean square of what is estimated. Second derivatives are
    unbiased, too.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, or a structure of which there are
            exact samples: no `Matching`, and no `Custom`.
        k: how many outcomes to sum over.

    >>> from fenchel.latent import marginalize
    >>> marginalize(torch.zeros(2, 5), lambda item, z: z.float(), SumAndSample(k=2)).calls
    tensor([3, 3])

    References: liu2019rao.
    """

    def __init__(self, over: Over | None = None, k: int = 1) -> None:
        super().__init__(over)
        check_probabilities(self.over, Perturbed)
        _checks.check_size("k", k)
        self.k = k

    def estimate_by_samples(self, distribution: HasProbabilities, loss: Loss) -> Expectation:
        top, exists = distribution.k_best(self.k)
        rest = distribution.sample_rest(top, exists)
        used = torch.cat([exists, rest.weight.unsqueeze(1) > 0], 1)
        item, slot = used.nonzero(as_tuple=True)
        z = torch.cat([top, rest.z.unsqueeze(1)], 1)[item, slot]
        losses, log_p = loss(item, z), distribution.log_prob(item, z)
        sampled = rest.weight[item] * score_weight(log_p)
        p = torch.where(slot < top.shape[1], log_p.exp(), sampled)
        terms = p.nan_to_num().to(losses.dtype) * losses
        value = terms.new_zeros(len(top)).index_add(0, item, terms)
        return Expectation(distribution, value, used.sum(1), rest.is_empty)

    def extra_repr(self) -> str:
        return f"over={self.over}, k={self.k}"
