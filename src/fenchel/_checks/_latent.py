"""Latent variables."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._values import dense_floats, kind


def estimator(value: object, bases: tuple[type, ...]) -> None:
    """What computes an expectation over a latent variable."""
    if not isinstance(value, bases):
        raise TypeError(
            "`mapping` must be a mapping, a structure or an estimator, such as "
            "`fenchel.Sparsemax()`, `fenchel.Bits(8)` or "
            f"`fenchel.latent.estimators.ScoreFunction()`; got {kind(value)}."
        )


def distribution(value: object, structures: type | tuple[type, ...], example: str) -> None:
    """A mapping onto the simplex, or one of these structures, that turns scores into a
    distribution."""
    total = getattr(value, "total", None)
    if isinstance(value, structures) or total == 1.0:
        return
    if total is None and not hasattr(value, "omega"):
        raise TypeError(
            f"`over` must be a mapping, such as `fenchel.Softmax()`, or {example}; got "
            f"{kind(value)}."
        )
    raise ValueError(f"`over` must sum to one to be a distribution; {kind(value)} does not.")


def losses(value: Any, pairs: int, name: str = "loss_fn") -> None:
    """What a user's function returned for so many pairs of an item and an outcome."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must return a torch.Tensor, got {kind(value)}.")
    if not value.is_floating_point():
        raise TypeError(f"`{name}` must return floating-point values, got {value.dtype}.")
    if tuple(value.shape) != (pairs,):
        raise ValueError(
            f"`{name}` must return one value per pair, shape ({pairs},); got {tuple(value.shape)}. "
            "Sum over the other dimensions."
        )


def posterior_alone(mapping: object) -> None:
    """No mapping beside a posterior, which has one already."""
    if mapping is not None:
        raise TypeError(
            "`mapping` must be None where a `Posterior` is given, which is a distribution already; "
            f"got {kind(mapping)}."
        )


def top_k_of(value: object, bases: tuple[type, ...]) -> None:
    """A mapping that gives nothing below a score that gets nothing, or bits."""
    if not isinstance(value, bases):
        raise TypeError(
            "`over` must be softmax, sparsemax or entmax, such as `fenchel.Sparsemax()`, or "
            f"`fenchel.Bits(8)`; got {kind(value)}."
        )


def baseline(value: object, base: type) -> None:
    """A baseline, or None."""
    if value is not None and not isinstance(value, base):
        raise TypeError(
            "`baseline` must be None or a baseline, such as "
            f"`fenchel.latent.estimators.MovingAverage()`; got {kind(value)}."
        )


def predictions(value: Any, items: int) -> Tensor:
    """A baseline network's answer, one number for each item, (B)."""
    if not isinstance(value, Tensor) or value.numel() != items or value.ndim > 2:
        found = tuple(value.shape) if isinstance(value, Tensor) else kind(value)
        raise ValueError(
            f"a baseline's `network` must return shape ({items},) or ({items}, 1), one value per "
            f"item; got {found}."
        )
    return value.reshape(items)


def context(value: Tensor | None, problem: Any) -> Tensor:
    """What a baseline sees of each item, (B, F): a tensor (..., F), or else the scores."""
    if value is None:
        return problem.scores.flatten(1).detach()
    dense_floats("context", value)
    if value.ndim == 0 or value.shape[:-1] != problem.batch:
        wanted = ", ".join([*map(str, problem.batch), "F"])
        raise ValueError(f"`context` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.reshape(len(problem.scores), value.shape[-1]).detach()


def sampled_prior(structure: object, bases: tuple[type, ...]) -> None:
    """A structure over which the library samples a prior."""
    if not isinstance(structure, bases):
        raise ValueError(
            "`scores` must be over categories or bits (`Bits`, `Budget`), for which a prior can be "
            f"sampled; got {kind(structure)}."
        )
