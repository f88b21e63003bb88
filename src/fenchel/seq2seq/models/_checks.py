"""Checks of models that form an ensemble, and of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..data._vocabulary import Vocabulary


def check_same_vocabularies(models: Sequence[Any]) -> None:
    """Checks that models read and write the same tokens; some may have no vocabularies."""
    for side in ("source", "target"):
        found = [getattr(model, side, None) for model in models]
        digests = {each.digest for each in found if isinstance(each, Vocabulary)}
        if len(digests) > 1:
            raise ValueError(
                f"the models of an ensemble must share their {side} vocabulary; train them on the "
                "same data."
            )


def check_all_copy(copies: Sequence[bool]) -> None:
    """Checks that all models copy, or none."""
    if len(set(copies)) > 1:
        raise ValueError(
            "the models of an ensemble must all have `model.copy_source`, or none of them."
        )


def check_same_sizes(sizes: Sequence[int]) -> None:
    """Checks that the models' target vocabularies have one size."""
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the models of an ensemble must share their target vocabulary, got sizes {sizes}."
        )


def check_distributions(p: Tensor) -> None:
    """Checks that each row of a model's output holds probabilities."""
    is_valid = (p >= 0).all(-1) & ((p.sum(-1) - 1).abs() <= 1e-3)  # false for NaN
    if not is_valid.all():
        row = p[~is_valid][0]
        what = (
            "NaN" if row.isnan().any() else f"entries from {row.min():g} that sum to {row.sum():g}"
        )
        raise ValueError(
            "a model's `probabilities` must be nonnegative and sum to one in every row; "
            f"got {what}."
        )
