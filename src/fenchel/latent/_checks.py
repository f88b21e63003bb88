"""Checks of what a user gives to an expectation over a latent variable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_float_tensor, type_name


def check_estimator(value: object, bases: tuple[type, ...]) -> None:
    """Raises unless the value is a mapping, a structure or an estimator."""
    if not isinstance(value, bases):
        raise TypeError(
            "`estimator` must be a mapping, a structure or an estimator, such as "
            "`fenchel.Sparsemax()`, `fenchel.Bits(8)` or "
            f"`fenchel.latent.estimators.ScoreFunction()`; got {type_name(value)}."
        )


def check_distribution(value: object, structures: type | tuple[type, ...]) -> None:
    """Raises unless the value turns scores into a distribution: a mapping onto the simplex, or one
    of these structures."""
    total = getattr(value, "total", None)
    is_class = isinstance(value, type)
    if not is_class and (isinstance(value, structures) or total == 1.0):
        return
    if is_class or (total is None and not hasattr(value, "omega")):
        raise TypeError(
            "`over` must be a mapping, such as `fenchel.Softmax()`, or a structure, such as "
            f"`fenchel.Bits(8)`; got {type_name(value)}."
        )
    raise ValueError(f"`over` must sum to one to be a distribution; {type_name(value)} does not.")


def check_not_graph(value: object, graph: type) -> None:
    """Raises for a graph of factors, whose relaxation has no distribution over structures."""
    if isinstance(value, graph):
        raise TypeError(
            "`over` must be a mapping, such as `fenchel.Softmax()`, or a structure with outcomes, "
            f"such as `fenchel.Bits(8)`; a {type_name(value)} has marginals alone: use the "
            "`marginals` of SparseMAP, or those of `Perturbed`."
        )


def check_probabilities(value: Any, perturbed: type) -> None:
    """Raises for perturb-and-MAP, whose probabilities are not known."""
    if isinstance(value, perturbed):
        raise TypeError(
            "`over` must be a mapping, such as `fenchel.Softmax()`, or a structure of known "
            f"probabilities, such as `fenchel.Bits(8)`; got {type_name(value.structure)}. "
            "`ScoreFunction` needs samples alone."
        )


def check_no_structure(extra_scores: object, lengths: object, mask: object, over: object) -> None:
    """Raises if a mapping, or an estimator without them, has extra scores, lengths or a mask."""
    given = {"extra_scores": extra_scores, "lengths": lengths, "mask": mask}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be None for {type_name(over)}, got {type_name(value)}; a score of "
                "−inf excludes an outcome."
            )


def check_same_structure(value: object, own: object) -> None:
    """Raises unless a prior of perturb-and-MAP is over the structure of the posterior."""
    if value is not own and value != own:
        raise ValueError(
            f"`structure` must be None where the posterior is perturb-and-MAP of {own}; got "
            f"{value}."
        )


def check_contains(larger: object, smaller: object, is_contained: bool) -> None:
    """Raises unless the set of a prior contains that of the posterior."""
    if not is_contained:
        raise ValueError(
            f"`structure` must contain all structures of the posterior's, {smaller}; {larger} does "
            "not."
        )


def check_losses(value: Any, num_pairs: int, name: str) -> None:
    """Raises unless a user's function returned one value for each of so many pairs."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must return a torch.Tensor, got {type_name(value)}.")
    if not value.is_floating_point():
        raise TypeError(f"`{name}` must return floating-point values, got {value.dtype}.")
    if tuple(value.shape) != (num_pairs,):
        raise ValueError(
            f"`{name}` must return one value per pair, shape ({num_pairs},); got "
            f"{tuple(value.shape)}. Sum over the other dimensions."
        )


def check_no_estimator(value: object) -> None:
    """Raises if an estimator is given along with a posterior, which needs none."""
    if value is not None:
        raise TypeError(
            "`estimator` must be None where a `Posterior` is given, which is a distribution "
            f"already; got {type_name(value)}."
        )


def check_no_inputs(extra_scores: object, lengths: object, mask: object) -> None:
    """Raises if extra scores, lengths or a mask are given along with a posterior."""
    given = {"extra_scores": extra_scores, "lengths": lengths, "mask": mask}
    for name, value in given.items():
        if value is not None:
            raise TypeError(
                f"`{name}` must be None where a `Posterior` is given; give it to `sparsemap`."
            )


def check_top_k(value: object, bases: tuple[type, ...]) -> None:
    """Raises unless top-k can be exact: for a mapping that keeps the order of scores, or bits."""
    if not isinstance(value, bases):
        raise TypeError(
            "`over` must be softmax, sparsemax or entmax, such as `fenchel.Sparsemax()`, or "
            f"`fenchel.Bits(8)`; got {type_name(value)}."
        )


def check_baseline(value: object, base: type) -> None:
    """Raises unless the value is a baseline or None."""
    if value is not None and not isinstance(value, base):
        raise TypeError(
            "`baseline` must be None or a baseline, such as "
            f"`fenchel.latent.estimators.MovingAverage()`; got {type_name(value)}."
        )


def check_predictions(value: Any, num_items: int) -> Tensor:
    """A baseline network's predictions as (B); raises unless there is one for each item."""
    if not isinstance(value, Tensor) or value.numel() != num_items or value.ndim > 2:
        found = tuple(value.shape) if isinstance(value, Tensor) else type_name(value)
        raise ValueError(
            f"a baseline's `network` must return shape ({num_items},) or ({num_items}, 1), one "
            f"value per item; got {found}."
        )
    return value.reshape(num_items)


def check_context(value: Tensor | None, problem: Any) -> Tensor:
    """What a baseline sees of each item, (B, F): the given tensor (..., F), or the scores, with
    zeros for those that are not finite or behind the end."""
    if value is None:
        scores = problem.scores.detach()
        seen = scores.isfinite()
        if problem.lengths is not None:
            seen = seen & problem.structure.length_mask(problem.lengths)
        return torch.where(seen, scores, 0.0).flatten(1)
    check_float_tensor("context", value)
    if value.ndim == 0 or value.shape[:-1] != problem.batch:
        wanted = ", ".join([*map(str, problem.batch), "F"])
        raise ValueError(f"`context` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.reshape(len(problem.scores), value.shape[-1]).detach()
