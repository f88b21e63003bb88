"""Expectations over a latent variable: the one call."""

from __future__ import annotations

from torch import Tensor

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._sparsemax import Sparsemax
from ..structures._base import AbstractStructure
from ..structures._posterior import Posterior
from ._expectation import Expectation, LossFn
from ._supports import by_posterior
from .estimators._base import AbstractEstimator
from .estimators._exact import Exact, summed

Mapping = AbstractMapping | AbstractStructure | AbstractEstimator | str


def marginalize(
    scores: Tensor | Posterior,
    loss_fn: LossFn,
    mapping: Mapping | None = None,
    *,
    context: Tensor | None = None,
    chunk: int | None = None,
) -> Expectation:
    """The expectation Σ_z p(z) ℓ(z) of each item of a batch, with ℓ computed on the support alone.

    Its gradients are exact, in the scores and in all that `loss_fn` computes with. The live pairs
    of an item and an outcome, of the whole batch, go to `loss_fn` together.

    Args:
        scores: (..., K) for a categorical latent, (..., *shape) for a structured one, floating
            point; or a `Posterior` of `fenchel.sparsemap`, where extra scores, lengths or the
            solver's options are needed.
        loss_fn: called with items (N,), indices of the batch in row-major order, and outcomes: the
            categories (N,) in int64, for a `Choice` too, or for another structure the indicators
            (N, *shape), such as the bits. Returns one value per pair, (N,). Estimators that relax
            give points of the simplex (N, K) or of the cube; `embed` takes both.
        mapping: what turns scores into a distribution: a mapping, such as `Softmax()` for all
            categories, or its name; a structure, for SparseMAP; or one of `latent.estimators`.
            None is `Sparsemax()`.
        context: (..., F), what a learned baseline sees; None for the scores. It gets no gradient.
        chunk: the most pairs in one call of `loss_fn`; None for all in one.
    Returns:
        An Expectation: `value` and `calls` for each item, whether it is `exact`, `marginals`,
        `entropy` and `kl`.
    Raises:
        TypeError, ValueError: for input, or values of `loss_fn`, of the wrong kind or shape.

    As many values of ℓ as the supports have outcomes, and once the mapping's time and memory.

    >>> import fenchel
    >>> scores = torch.tensor([[1.0, 0.5, -1.0], [3.0, 0.0, 0.0]], requires_grad=True)
    >>> def loss(item, z):
    ...     return (z + 1.0) ** 2
    >>> outcome = marginalize(scores, loss)
    >>> outcome.value, outcome.calls
    (tensor([1.7500, 1.0000], grad_fn=<...>), tensor([2, 1]))
    >>> outcome.value.sum().backward()
    >>> scores.grad
    tensor([[-1.5000,  1.5000,  0.0000],
            [ 0.0000,  0.0000,  0.0000]])
    >>> marginalize(scores, loss, fenchel.Softmax()).calls
    tensor([3, 3])

    References: correia2020efficient.
    """
    if chunk is not None:
        _checks.size("chunk", chunk)
    if isinstance(scores, Posterior):
        _checks.posterior_alone(mapping)
        return summed(by_posterior(scores), loss_fn, chunk)
    return estimator_of(mapping)(scores, loss_fn, context, chunk)


def estimator_of(mapping: Mapping | None) -> AbstractEstimator:
    """The estimator that a mapping or a structure stands for, or the one given."""
    if mapping is None:
        mapping = Sparsemax()
    if isinstance(mapping, str):
        return Exact(mapping)
    _checks.estimator(mapping, (AbstractMapping, AbstractStructure, AbstractEstimator))
    return mapping if isinstance(mapping, AbstractEstimator) else Exact(mapping)
