"""Prediction sets by split conformal prediction: how badly a class fits, and the quantile."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from ...mappings import AbstractMapping
from ...mappings._tsallis import AbstractTsallis

SCORES = ("support", "loss")


def choose_score(mapping: AbstractMapping, score: str | None) -> str:
    """The score asked for; if None, "support" for a mapping of the entmax family above α = 1."""
    has_support = isinstance(mapping, AbstractTsallis) and float(mapping.exponent) > 1
    if score is None:
        return "support" if has_support else "loss"
    if score not in SCORES:
        raise ValueError(f"`score` must be one of {', '.join(SCORES)}, got {score!r}.")
    if score == "support" and not has_support:
        raise ValueError(
            '`score` must be "loss" for a mapping other than sparsemax and entmax with alpha '
            f"greater than 1, got {score!r} with {mapping.name}."
        )
    return score


def nonconformity(
    mapping: AbstractMapping, scores: Tensor, target: Tensor, score: str
) -> np.ndarray:
    """How badly the classes (n,) fit scores (n, classes)."""
    if score == "loss":
        return all_losses(mapping, scores).gather(1, target[:, None]).squeeze(1).numpy()
    return entry_temperatures(mapping, scores, scores.gather(1, target[:, None])).numpy()


def prediction_sets(
    mapping: AbstractMapping, scores: Tensor, quantile: float, score: str
) -> np.ndarray:
    """Which classes fit scores (n, classes) no worse than the quantile, (n, classes)."""
    if score == "loss":
        return (all_losses(mapping, scores) <= quantile).numpy()
    # A class enters the support after all those with larger scores, so the last is found by halves.
    ordered = scores.sort(1, descending=True).values
    first = torch.zeros(len(scores), 1, dtype=torch.int64)
    last = torch.full_like(first, scores.shape[1] - 1)
    for _ in range(scores.shape[1].bit_length()):
        middle = (first + last + 1) // 2
        inside = entry_temperatures(mapping, scores, ordered.gather(1, middle)) <= quantile
        inside = inside[:, None]
        first, last = torch.where(inside, middle, first), torch.where(inside, last, middle - 1)
    return (scores >= ordered.gather(1, first)).numpy()


def all_losses(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """L(θ, eᵢ) of every class i, (n, classes)."""
    d = scores.shape[1]
    omega = mapping.vertex_omega(torch.arange(d)[:, None], scores.new_zeros(1).expand(d, d))
    return (mapping.max(scores)[:, None] + mapping.gamma * omega - scores).detach()


def entry_temperatures(mapping: AbstractMapping, scores: Tensor, of: Tensor) -> Tensor:
    """The γ above which an entry of score `of` (n, 1) is in the support of entmax(scores/γ), (n,).

    (α−1) ‖[θ − of]₊‖ with the norm of exponent 1/(α−1): an entry is in the support if and only if
    Σⱼ [(α−1)(θⱼ − of)/γ]₊^(1/(α−1)) < 1.
    """
    epsilon = float(mapping.exponent) - 1.0  # type: ignore[attr-defined]
    above = torch.where(scores > of, scores - of, 0.0)
    largest = above.amax(1, keepdim=True)
    ratios = torch.where(above == largest, 1.0, above / largest)
    norm = largest.squeeze(1) * (ratios ** (1 / epsilon)).sum(1) ** epsilon
    return epsilon * norm


def conformal_quantile(values: np.ndarray, coverage: float) -> float:
    """The ⌈(n + 1)·coverage⌉-th smallest of n values; +inf if there are fewer."""
    # The decimal number that was typed: as a float, 0.07 · 100 is more than 7.
    rank = math.ceil((len(values) + 1) * Fraction(repr(float(coverage))))
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else math.inf
