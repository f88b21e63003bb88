"""How promises are checked, one after the other, on scores that are always the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Promise = Callable[[Any, Tensor], "Tensor | bool"]
"""From a subject and scores (B, …) to whether it keeps the promise, (B) or one for all.

Its docstring says what is promised.
"""


def check_promises(subject: Any, promises: Iterable[Promise], shape: tuple[int, ...]) -> None:
    """Raises an AssertionError for the first promise that is broken, with the scores.

    Args:
        subject: the mapping or the structure.
        promises: what to check.
        shape: that of the scores of one instance; four are checked, two of small scores.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        scores = torch.randn(4, *shape, dtype=torch.float64)
        scores[::2] *= 0.3
        scores[1::2] *= 3.0
        for promise in promises:
            _check(subject, promise, scores)


def _check(subject: Any, promise: Promise, scores: Tensor) -> None:
    promised = " ".join(str(inspect.getdoc(promise)).split())
    text = f"{subject!r} breaks this promise: “{promised}”"
    try:
        kept = torch.as_tensor(promise(subject, scores.clone()))
    except Exception as error:
        raise AssertionError(
            f"{text}. For the scores {scores.tolist()} it raised {type(error).__name__}: {error}"
        ) from error
    if not kept.all():
        first = scores if kept.ndim == 0 else scores[~kept][0]
        raise AssertionError(f"{text}. An example are the scores {first.tolist()}.")


def rows_agree(a: Tensor, b: Tensor, rtol: float = 1e-6, atol: float = 1e-8) -> Tensor:
    """Which rows (B) of a and b, (B, …), are close; NaN equals NaN."""
    if a.shape != b.shape:
        return torch.tensor(False)
    near = torch.isclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)
    return near.flatten(1).all(1) if near.ndim > 1 else near


def differences(function: Callable[[Tensor], Tensor], scores: Tensor, step: float = 1e-5) -> Tensor:
    """The gradient (B, d) of a function from rows (..., d) to values (...), by central
    differences."""
    moves = step * torch.eye(scores.shape[1], dtype=scores.dtype)
    above, below = function(torch.stack([scores.unsqueeze(1) + moves, scores.unsqueeze(1) - moves]))
    return (above - below) / (2 * step)
