"""What to watch in training: calls of the loss function, and the variance of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks
from ._expectation import Expectation

Row = dict[str, float]


class History:
    """The number of loss-function calls per item, epoch by epoch.

    For an exact estimator this is the size of the support.

    >>> from fenchel.latent import marginalize
    >>> history = History()
    >>> history.add(marginalize(torch.eye(3) * 2, lambda item, z: z.float()))
    >>> history.close()["median"], history.rows[0]["items"]
    (1.0, 3)
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._calls: list[Tensor] = []
        self._exact: list[Tensor] = []

    def add(self, expectation: Expectation) -> None:
        """Adds the items of a batch to the current epoch."""
        self._calls.append(expectation.calls.detach().flatten())
        self._exact.append(expectation.exact.detach().flatten())

    def close(self) -> Row:
        """Ends the current epoch and returns its row.

        The row has the calls per item (`median`, `p10`, `p90`, `mean`), the share of items that
        were `exact`, and the number of `items`.
        """
        calls = torch.cat(self._calls).double().cpu() if self._calls else torch.zeros(0)
        if not len(calls):
            raise ValueError(
                "an epoch must have at least one batch with items; call `add` before `close`."
            )
        exact = torch.cat(self._exact).double().cpu()
        low, median, high = calls.quantile(calls.new_tensor([0.1, 0.5, 0.9])).tolist()
        row = {
            "median": median,
            "p10": low,
            "p90": high,
            "mean": calls.mean().item(),
            "exact": exact.mean().item(),
            "items": len(calls),
        }
        self.rows.append(row)
        self._calls.clear()
        self._exact.clear()
        return row


class GradientVariance(NamedTuple):
    """The mean of several gradients, one tensor per parameter, and the sum of the variances of all
    their entries.

    >>> from fenchel.latent import estimators, marginalize
    >>> scores = torch.zeros(4, requires_grad=True)
    >>> estimator = estimators.ScoreFunction(samples=1)
    >>> def loss():
    ...     return marginalize(scores, lambda item, z: z.float(), estimator).value
    >>> found = gradient_variance(loss, [scores], samples=20)
    >>> found.mean[0].shape, found.variance > 0
    (torch.Size([4]), True)
    """

    mean: tuple[Tensor, ...]
    variance: float


def gradient_variance(
    loss: Callable[[], Tensor], parameters: Iterable[Tensor], samples: int = 100
) -> GradientVariance:
    """The variance of an estimated gradient; that of an exact one is zero.

    Args:
        loss: computes a scalar with fresh samples at each call.
        parameters: what to differentiate in; their `grad` does not change.
        samples: how many gradients to compute, at least 2.
    Returns:
        A GradientVariance.

    >>> from fenchel.latent import estimators, marginalize
    >>> scores = torch.zeros(4, requires_grad=True)
    >>> def loss():
    ...     return marginalize(scores, lambda item, z: z.float(), estimators.Exact()).value
    >>> gradient_variance(loss, [scores], samples=5)
    GradientVariance(mean=(tensor([-1.5000, -0.5000,  0.5000,  1.5000]),), variance=0.0)
    """
    _checks.check_size("samples", samples, minimum=2)
    parameters = list(parameters)
    means = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    squares = 0.0
    for count in range(1, samples + 1):
        gradients = torch.autograd.grad(loss(), parameters, allow_unused=True)
        for mean, gradient in zip(means, gradients, strict=True):
            step = (0.0 if gradient is None else gradient.double()) - mean
            mean += step / count
            squares += float((step * step).sum()) * (count - 1) / count
    rounded = tuple(mean.to(p.dtype) for mean, p in zip(means, parameters, strict=True))
    return GradientVariance(rounded, squares / (samples - 1))
