"""Expectations over a latent variable."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..mappings import AbstractMapping
from ..mappings._sparsemax import Sparsemax
from ..structures._base import AbstractStructure
from ..structures._posterior import Posterior
from ..structures._problem import ExtraScores
from ._checks import check_estimator, check_no_estimator, check_no_inputs
from ._expectation import Expectation, Loss, LossFn
from ._supports import from_posterior
from .estimators._base import AbstractEstimator
from .estimators._exact import Exact, sum_over_support

Estimator = AbstractMapping | AbstractStructure | AbstractEstimator | str


def marginalize(
    scores: Tensor | Posterior,
    loss_fn: LossFn,
    estimator: Estimator | None = None,
    *,
    extra_scores: ExtraScores | None = None,
    lengths: Any = None,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    chunk: int | None = None,
) -> Expectation:
    """The expectation Σ_z p(z) ℓ(z) of each item of a batch, with ℓ computed on the support alone.

    Its gradients are exact, in the scores and in all that `loss_fn` computes with. One call of
    `loss_fn` gets all pairs of an item and an outcome in its support, of the whole batch.

    Args:
        scores: (..., K) for a categorical latent, (..., *shape) for a structured one, floating
            point; or a `Posterior` of `fenchel.sparsemap`, which takes options of the solver.
        loss_fn: called with items (N,), indices of the batch in row-major order, and outcomes: the
            categories (N,) in int64, for a `Choice` too, or for another structure the indicators
            (N, *shape), such as the bits. Returns one value per pair, (N,). Estimators that relax
            give points of the simplex (N, K) or of the cube; `embed` takes both.
        estimator: how to compute it: exactly, over the support of a mapping, such as
            `Softmax()` for all categories, or its name, or over that of SparseMAP for a structure;
            or as one of `latent.estimators` does. None is `Sparsemax()`.
        extra_scores, lengths, mask: those of a structure, as for `fenchel.map_inference`.
        context: (..., F), what a learned baseline sees; None for the scores, with zeros for those
            that are not finite or behind the end. It gets no gradient.
        chunk: the largest number of pairs in one call of `loss_fn`; None for no limit.
    Returns:
        An Expectation: `value` and `calls` for each item, whether it is `exact`, `marginals`,
        `entropy` and `kl`.
    Raises:
        TypeError, ValueError: for input, or values of `loss_fn`, of the wrong kind or shape.

    ℓ is computed once for each outcome in a support, the mapping once for the batch.

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
    if isinstance(scores, Posterior):
        check_no_estimator(estimator)
        check_no_inputs(extra_scores, lengths, mask)
        return sum_over_support(from_posterior(scores), Loss(loss_fn, chunk))
    given = {"extra_scores": _kept(extra_scores), "lengths": lengths, "mask": mask}
    return as_estimator(estimator)(_kept(scores), loss_fn, context, chunk, **given)


def _kept(scores: Any) -> Any:
    """Scores that stay as they are when an optimizer changes parameters in place: an entropy may be
    read after its step."""
    if isinstance(scores, tuple):
        return tuple(map(_kept, scores))
    if not isinstance(scores, Tensor) or not scores.requires_grad:
        return scores
    source = scores if scores._base is None else scores._base
    return scores.clone() if source.is_leaf else scores


def as_estimator(value: Estimator | None) -> AbstractEstimator:
    """The given estimator; `Exact` for a mapping, its name, or a structure."""
    if value is None:
        value = Sparsemax()
    if isinstance(value, str):
        return Exact(value)
    check_estimator(value, (AbstractMapping, AbstractStructure, AbstractEstimator))
    return value if isinstance(value, AbstractEstimator) else Exact(value)
