"""The checks that come before any clock: a wrong answer is not timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .ground_truth import GroundTruth

Function = Callable[[Tensor], Tensor]
ROWS = [0, -1]
"""The rows that are checked, the ends of what the threads share; the exact answer is slow."""
TOLERANCE = 2e-6
"""On the largest error of an entry in float32; the `accuracy` case is the strict one."""
STEP = 1e-6
"""Of the finite differences, in float64."""


class WrongAnswerError(Exception):
    """A contender's result is not the mapping's."""


@dataclass(frozen=True)
class Subject:
    """A mapping under a label.

    `baselines` gives the `entmax` package's functions for rows whose widest support is k.
    """

    label: str
    function: Function
    ground_truth: GroundTruth
    baselines: Callable[[int], dict[str, Function]] = lambda k: {}


@dataclass(frozen=True)
class LossSubject:
    """The mean loss of a mapping under a label, and −Ω.

    `baseline` is the `entmax` package's loss, if there is one.
    """

    label: str
    function: Callable[[Tensor, Tensor], Tensor]
    ground_truth: GroundTruth
    entropy: Callable[[Tensor], Tensor]
    baseline: Callable[[Tensor, Tensor], Tensor] | None = None


def _near(what: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    error = float((actual.double() - expected).abs().max())
    if not error <= tolerance:  # NaN too
        raise WrongAnswerError(f"{what} is wrong by {error:.2g}, more than {tolerance:g}.")


def relative_error(what: str, actual: Tensor, expected: Tensor, tolerance: float) -> float:
    """‖actual − expected‖ / ‖expected‖, for the roundings of half precision."""
    error = float((actual.double() - expected).norm() / expected.norm())
    if not error <= tolerance:  # NaN too
        raise WrongAnswerError(f"{what} wrong by {error:.2g} of its norm")
    return error


def check_mapping(subject: Subject, x: Tensor, v: Tensor) -> None:
    """The values of a mapping against the ground truth, and its gradient against differences.

    Args:
        subject: the mapping and its ground truth.
        x, v: scores and a cotangent, float32 (n, d).
    """
    function = subject.function
    x = x.detach().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, v)
    wide = x.detach()[ROWS].double()
    _near(subject.label, y.detach()[ROWS], subject.ground_truth(wide), TOLERANCE)
    # The Jacobian J is symmetric, so <gradient, w> = <v, Jw> for a random direction w.
    w = torch.randn_like(wide)
    moved = (function(wide + STEP * w) - function(wide - STEP * w)) / (2 * STEP)
    expected = (moved * v[ROWS]).sum(-1)
    scale = float(1 + expected.abs().max())
    _near(f"the gradient of {subject.label}", (gradient[ROWS] * w).sum(-1), expected, 1e-3 * scale)


def check_loss(subject: LossSubject, x: Tensor, target: Tensor) -> None:
    """A mean Fenchel-Young loss and its gradient against the ground truth.

    Args:
        subject: the loss, with the ground truth of its mapping and its entropy.
        x, target: scores, float32 (n, d), and classes (n,).
    """
    x, target = x.detach()[ROWS].requires_grad_(), target[ROWS]
    loss = subject.function(x, target)
    (gradient,) = torch.autograd.grad(loss, x)
    wide = x.detach().double()
    y = subject.ground_truth(wide)
    rows = torch.arange(len(target), device=target.device)
    expected = ((y * wide).sum(-1) + subject.entropy(y) - wide[rows, target]).mean()
    _near(
        f"the loss of {subject.label}",
        loss.detach(),
        expected,
        TOLERANCE * float(1 + expected.abs()),
    )
    y[rows, target] -= 1
    _near(f"the gradient of the loss of {subject.label}", gradient, y / len(target), TOLERANCE)
